/** What a screen reader says: one polite live region for the whole extension. */

let region: HTMLElement | null = null;

/**
 * The region stands in the page's body: the side panel may be closed, and a hidden region is
 * silent.
 */
export function announce(message: string): void {
  if (!region || !region.isConnected) {
    region = document.createElement('div');
    region.className = 'fusion-visually-hidden';
    region.setAttribute('role', 'status');
    region.setAttribute('aria-live', 'polite');
    document.body.append(region);
  }
  region.textContent = message;
}
