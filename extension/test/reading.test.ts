import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { loadExtension, profiledCode } from '../src/extension_loading';
import { figures, microseconds, percent, whereInside } from '../src/format';
import { asMessage, readFindings, readProposal } from '../src/protocol';
import { merged } from '../src/settings';
import { PACKAGE_VERSION } from '../src/version';
import { finding } from './helpers';

describe('messages', () => {
  it('without sense become none, or the careful reading', () => {
    expect(asMessage(null)).toBeNull();
    expect(asMessage([])).toBeNull();
    expect(asMessage({ type: 5 })).toBeNull();
    const { findings } = readFindings({
      type: 'findings',
      findings: [
        { id: 'F1', safety: 'surely', state: 'odd', actions: ['fuse', 'rm'], share: NaN },
        { title: 'without a name' },
        'F3'
      ]
    });
    expect(findings).toHaveLength(1);
    // Unknown words must not read as safe, or as something that can be done.
    expect(findings[0]).toMatchObject({
      safety: 'display-only',
      state: 'open',
      actions: ['fuse'],
      share: 0,
      mark: null,
      fusable: false
    });
  });

  it('a proposal passes only when it says so', () => {
    for (const passed of [undefined, 'yes', 1]) {
      expect(readProposal({ type: 'proposal', passed }).passed).toBe(false);
    }
    const read = readProposal({
      type: 'proposal',
      passed: true,
      edits: [
        { start: 0, end: 1.5, new: '' },
        { start: 2, end: 3 }
      ],
      rungs: [{ name: 'n', status: 'great' }],
      timing: { eager_us: 3, fused_us: 0 }
    });
    expect(read.edits).toEqual([{ start: 2, end: 3, new: '' }]);
    expect(read.rungs[0].status).toBe('not run');
    expect(read.timing).toBeNull();
  });

  it('a mark keeps its text when the kernel cannot name the cell', () => {
    const mark = { cell_id: null, start: 4, end: 9, text: 'x + 1', source_hash: 'abc' };
    const { findings } = readFindings({ type: 'findings', findings: [{ id: 'F1', mark }] });
    expect(findings[0].mark).toEqual({ ...mark, cell_id: '' });
  });
});

describe('figures', () => {
  it('have the unit that fits', () => {
    expect([0.5, 7, 99.95, 412, 1234, 52_300, 2_500_000].map(microseconds)).toEqual([
      '0.50 µs',
      '7 µs',
      '100 µs',
      '412 µs',
      '1.23 ms',
      '52.3 ms',
      '2.50 s'
    ]);
    expect([0, 0.004, 0.0949, 0.5, 1].map(percent)).toEqual([
      '0 %',
      '0.4 %',
      '9.5 %',
      '50 %',
      '100 %'
    ]);
  });

  it('stand in one line, the count only when there are several', () => {
    expect(figures(finding())).toBe('12 % of the run · saves 120 µs–310 µs · safe');
    expect(figures(finding({ occurrences: 12, safety: 'unsafe' }))).toMatch(/unsafe · ×12$/);
  });

  it('name the package of an installed file', () => {
    const inside = {
      file: '/usr/lib/python3/site-packages/transformers/models/gpt2/modeling_gpt2.py',
      line: 123,
      function: 'forward',
      text: ''
    };
    expect(whereInside(finding({ inside }))).toBe('models/gpt2/modeling_gpt2.py:123 in forward');
    const windows = { ...inside, file: 'C:\\py\\torch\\nn\\act.py', function: '' };
    expect(whereInside(finding({ inside: windows }))).toBe('torch/nn/act.py:123');
  });
});

describe('profile this cell', () => {
  it('puts the magic before the text, unless it is there', () => {
    expect(profiledCode('y = x')).toEqual({ code: '%%fuse_profile\ny = x', addedLines: 1 });
    const own = '%%fuse_profile --top 3\ny = x';
    expect(profiledCode(own)).toEqual({ code: own, addedLines: 0 });
    expect(profiledCode('%%time\ny = x').code).toBe('%%fuse_profile\n%%time\ny = x');
    expect(profiledCode('%%fuse_profiler\ny').addedLines).toBe(1);
  });

  const loading = (content: object, language = 'python'): Promise<string> =>
    loadExtension({
      info: Promise.resolve({ language_info: { name: language } }),
      requestExecute: () => ({ done: Promise.resolve({ content }) })
    } as unknown as Parameters<typeof loadExtension>[0]);

  it('says what to do when the extension cannot be loaded', async () => {
    expect(await loading({ status: 'ok' })).toBe('');
    const missing = {
      status: 'error',
      ename: 'ModuleNotFoundError',
      evalue: "No module named 'fusion_advisor'"
    };
    expect(await loading(missing)).toContain('%pip install fusion-advisor');
    const broken = { ...missing, evalue: "No module named 'numba'" };
    expect(await loading(broken)).toBe(
      "The kernel could not load fusion_advisor: ModuleNotFoundError: No module named 'numba'"
    );
    expect(await loading({ status: 'aborted' })).toContain('aborted');
    expect(await loading({ status: 'ok' }, 'R')).toContain('needs Python');
  });
});

describe('settings', () => {
  it('keep the defaults for values of the wrong type', () => {
    expect(merged({ top: 9, target: 3, marks: false, min_saving_us: null })).toEqual({
      target: 'auto',
      device: '',
      top: 9,
      min_saving_us: 2,
      marks: false
    });
  });

  it('have the defaults of the schema', () => {
    const schema = JSON.parse(readFileSync('schema/plugin.json', 'utf8')) as {
      properties: Record<string, { default: unknown }>;
    };
    const defaults = Object.entries(schema.properties).map(([key, value]) => [key, value.default]);
    expect(Object.fromEntries(defaults)).toEqual(merged({}));
  });
});

describe('versions', () => {
  it('are one in the page, the package and the Python side', () => {
    const { version } = JSON.parse(readFileSync('package.json', 'utf8')) as { version: string };
    const python = readFileSync('../fusion_advisor/_version.py', 'utf8');
    expect(version).toBe(PACKAGE_VERSION);
    expect(/__version__ = "([^"]+)"/.exec(python)?.[1]).toBe(PACKAGE_VERSION);
  });

  it('the oldest JupyterLab allowed at run time is the oldest one declared', () => {
    const { dependencies, jupyterlab } = JSON.parse(readFileSync('package.json', 'utf8')) as {
      dependencies: Record<string, string>;
      jupyterlab: { sharedPackages: Record<string, { requiredVersion: string }> };
    };
    const declared = Object.entries(dependencies).filter(([name]) => /^@jupyterlab/.test(name));
    expect(declared.length).toBeGreaterThan(5);
    for (const [name, range] of declared) {
      expect(jupyterlab.sharedPackages[name]?.requiredVersion).toBe(range);
    }
  });
});
