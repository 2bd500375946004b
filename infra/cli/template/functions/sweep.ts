import { sweepHandler } from 'cronce/lambda';
import { registry } from './jobs/index.ts';

export const handler = sweepHandler({ registry });
