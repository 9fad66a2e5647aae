/** What a page has and jsdom lacks. */

class NoObserver {
  observe(): void {}
  unobserve(): void {}
  disconnect(): void {}
}

Object.assign(globalThis, {
  DragEvent: globalThis.DragEvent ?? Event,
  ResizeObserver: NoObserver,
  IntersectionObserver: NoObserver,
  // React's act() warns where this is not set.
  IS_REACT_ACT_ENVIRONMENT: true
});

// CodeMirror measures text; jsdom lays nothing out.
Range.prototype.getClientRects = () => [] as unknown as DOMRectList;
Range.prototype.getBoundingClientRect = () => new DOMRect();
