import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'fusion-advisor:plugin',
  description: 'Marks fusable PyTorch chains and puts validated kernels in place.',
  autoStart: true,
  activate: (_app: JupyterFrontEnd): void => undefined
};

export default plugin;
