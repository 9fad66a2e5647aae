/** What the kernel is asked to run: the magic before a cell's text, and the loading of it. */

import type { Kernel } from '@jupyterlab/services';

const MAGIC = '%%fuse_profile';

/** What the kernel runs for a cell with this text, and how many lines were put before it. */
export function profiledCode(source: string): { code: string; addedLines: number } {
  return new RegExp(`^\\s*${MAGIC}\\b`).test(source)
    ? { code: source, addedLines: 0 }
    : { code: `${MAGIC}\n${source}`, addedLines: 1 };
}

/** Load the extension in the kernel. Returns what is wrong and what to do, or an empty text. */
export async function loadExtension(
  kernel: Pick<Kernel.IKernelConnection, 'requestExecute' | 'info'>
): Promise<string> {
  const info = await kernel.info;
  if (info.language_info.name !== 'python') {
    return `The notebook's kernel runs ${info.language_info.name}: Fusion Advisor needs Python.`;
  }
  const future = kernel.requestExecute({
    code: '%load_ext fusion_advisor',
    silent: true,
    store_history: false,
    stop_on_error: false
  });
  const reply = await future.done;
  if (reply.content.status === 'ok') {
    return '';
  }
  if (reply.content.status === 'error') {
    const { ename, evalue } = reply.content;
    return ename === 'ModuleNotFoundError' && evalue.includes('fusion_advisor')
      ? 'The kernel’s Python has no fusion_advisor. Install it there: run ' +
          '“%pip install fusion-advisor” in a cell, then restart the kernel.'
      : `The kernel could not load fusion_advisor: ${ename}: ${evalue}`;
  }
  return 'The kernel aborted the loading of fusion_advisor. Try again.';
}
