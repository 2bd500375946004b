'use strict';

// serverless.yml reads its functions and resources from here. CommonJS, because osls loads such files by require();
// all it does is to hand over to deployment.ts, which is typed and checked like the rest.
const loaded = import('tsx/esm/api').then(({ tsImport }) => tsImport('./deployment.ts', __filename));

module.exports = async ({ resolveVariable, resolveConfigurationProperty }) => {
  const { deploymentOf } = await loaded;
  const service = await resolveConfigurationProperty(['service']);
  const stage = await resolveVariable('sls:stage');
  return deploymentOf({ service, stage, environment: process.env });
};
