'use strict';

// serverless.yml reads its functions and resources from here; all it does is to hand over to template.ts.
const { load } = require('./load.cjs');

const loaded = load('template');

module.exports = async ({ resolveVariable, resolveConfigurationProperty }) => {
  const service = await resolveConfigurationProperty(['service']);
  const stage = await resolveVariable('sls:stage');
  const { templateOf } = await loaded;
  return templateOf({ service, stage, environment: process.env }).catch(endWithLine);
};

// Their messages are one line with the cure. osls would print it in the midst of ten, and a stack trace in the emulator.
const ours = ['DeploymentError', 'JobError', 'LockNameError', 'SettingsError'];

function endWithLine(error) {
  if (!(error instanceof Error) || !ours.includes(error.name)) throw error;
  console.error(`serverless: ${error.message}`);
  process.exit(1);
}
