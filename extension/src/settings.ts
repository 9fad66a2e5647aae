/** The person's settings, sent to every kernel. Magic options and `%config` go before them. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ISignal, Signal } from '@lumino/signaling';
import type { ISettings } from './protocol';

const DEFAULTS: ISettings = {
  target: 'auto',
  device: '',
  top: 5,
  min_saving_us: 2,
  marks: true
};

export class Settings {
  private readonly _changed = new Signal<this, ISettings>(this);
  private _values = DEFAULTS;
  private _stored: ISettingRegistry.ISettings | null = null;

  get values(): ISettings {
    return this._values;
  }

  get changed(): ISignal<this, ISettings> {
    return this._changed;
  }

  /** Read the settings of the plugin, and follow them. Without a registry the defaults hold. */
  async load(registry: ISettingRegistry, pluginId: string): Promise<void> {
    this._stored = await registry.load(pluginId);
    this._stored.changed.connect(stored => this._take(stored.composite));
    this._take(this._stored.composite);
  }

  /** Switch the marks; kept with the other settings where there is a registry. */
  async setMarks(marks: boolean): Promise<void> {
    if (this._stored) {
      await this._stored.set('marks', marks);
    } else {
      this._take({ ...this._values, marks });
    }
  }

  private _take(composite: Readonly<Record<string, unknown>>): void {
    this._values = merged(composite);
    this._changed.emit(this._values);
  }
}

/** Stored values of the right type over the defaults. */
export function merged(composite: Readonly<Record<string, unknown>>): ISettings {
  const take = <Key extends keyof ISettings>(key: Key): ISettings[Key] => {
    const value = composite[key];
    return typeof value === typeof DEFAULTS[key] ? (value as ISettings[Key]) : DEFAULTS[key];
  };
  return {
    target: take('target'),
    device: take('device'),
    top: take('top'),
    min_saving_us: take('min_saving_us'),
    marks: take('marks')
  };
}
