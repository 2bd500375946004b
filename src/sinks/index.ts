/** Where outcomes go beside the log. */
export { eventBridgeSink, type EventBridgeOptions } from './eventbridge.ts';
export type { Refusal, Report, Sink, Wanted } from './sink.ts';
export { WebhookError, webhookSink, type WebhookOptions, type WebhookShape } from './webhook.ts';
