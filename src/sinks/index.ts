/** Where outcomes go beside the log. */
export { eventBridgeSink, type EventBridgeOptions } from './eventbridge.ts';
export type { Sink } from '../path/publish.ts';
