'use strict';

// The plugin that serverless.yml names; all it does is to hand over to plugin.ts.
const { load } = require('./load.cjs');

let loaded;
const plugin = () => (loaded ??= load('plugin'));

module.exports = class CroncePlugin {
  constructor(serverless, options) {
    this.serverless = serverless;
    const root = serverless.serviceDir;
    const build = async () => {
      const { buildFirst, isForPeople } = await plugin();
      await buildFirst(root).catch((error) => {
        if (!isForPeople(error)) throw error;
        throw new serverless.classes.Error(`build: ${error.message}`, 'CRONCE_BUILD');
      });
    };
    const emulate = async () => {
      await build();
      await (await plugin()).standIn({ service: serverless.service, options });
    };
    this.hooks = {
      'before:package:initialize': build,
      'before:deploy:function:packageFunction': build,
      'before:invoke:local:invoke': build,
      'before:offline:start': emulate,
      'before:offline:start:init': emulate,
    };
  }

  /** The configuration can be extended now, and not later. */
  async asyncInit() {
    const { serverless } = this;
    if (serverless.processedInput.isHelpRequest) return;
    const { extensionsOf, isForPeople } = await plugin();
    const stage = serverless.getProvider('aws').getStage();
    try {
      const configuration = serverless.configurationInput;
      for (const [path, value] of await extensionsOf(serverless.serviceDir, stage, configuration))
        serverless.extendConfiguration([...path], value);
    } catch (error) {
      if (!isForPeople(error)) throw error;
      // One line with the cure. The framework would print it in the midst of ten, and a stack trace in the emulator.
      console.error(`serverless: ${error.message}`);
      process.exit(1);
    }
  }
};
