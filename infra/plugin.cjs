'use strict';

// The plugin that serverless.yml names; all it does is to hand over to plugin.ts.
const { load } = require('./load.cjs');

let loaded;

module.exports = class CroncePlugin {
  constructor(serverless, options) {
    const plugin = () => (loaded ??= load('plugin'));
    const build = async () => {
      const fault = await (await plugin()).buildFirst();
      if (fault !== null) throw new serverless.classes.Error(fault, 'CRONCE_BUILD');
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
};
