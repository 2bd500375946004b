/** After how long Lambda runs a failed asynchronous invocation again, ms: once, and once more. */
export const retryAfterMs = [60_000, 120_000] as const;
