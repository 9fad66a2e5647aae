import { readFileSync } from 'node:fs';
import { defineConfig, type Plugin } from 'vitest/config';

/** JupyterLab's packages import their icons as text and their style sheets for effect. */
const assets: Plugin = {
  name: 'assets',
  enforce: 'pre',
  load(id) {
    const path = id.split('?')[0];
    if (path.endsWith('.svg')) {
      return `export default ${JSON.stringify(readFileSync(path, 'utf8'))};`;
    }
    return path.endsWith('.css') ? 'export default "";' : null;
  }
};

export default defineConfig({
  plugins: [assets],
  test: {
    environment: 'jsdom',
    include: ['test/**/*.test.{ts,tsx}'],
    setupFiles: ['test/setup.ts'],
    restoreMocks: true,
    // No test waits this long; a loaded machine of two cores makes them slow.
    testTimeout: 30_000,
    // @jupyter/ydoc makes cells in two steps, which Yjs remarks on each time.
    onConsoleLog: log => !/Add Yjs type to a document|yjs#509/.test(log),
    // Published for bundlers: extensionless imports and assets, which node itself cannot load.
    server: { deps: { inline: [/@jupyterlab\//, /@jupyter\//, /@lumino\//] } }
  }
});
