import { LabIcon } from '@jupyterlab/ui-components';

/** Three bars that join into one: separate kernels, fused. `jp-icon3` follows the theme. */
const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="#616161">
    <path d="M3 4h6v3H3zM3 10.500h6v3H3zM3 17h6v3H3z"/>
    <path d="M10 4.500l4.500 5v5L10 19.500v-3l2-2.500v-4l-2-2.500z"/>
    <path d="M15.500 8h5.500v8h-5.500z"/>
  </g>
</svg>`;

export const fusionIcon = new LabIcon({ name: 'fusion-advisor:icon', svgstr: SVG });
