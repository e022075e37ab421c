// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import "context"

type refreshKey struct{}

// ForRefresh returns a context that marks a List as a refresh: its caller looks again at UIDs that Watch has
// named. A driver may then answer from the cache of its watch, which proves less than a live read.
func ForRefresh(ctx context.Context) context.Context {
	return context.WithValue(ctx, refreshKey{}, true)
}

// IsRefresh reports whether a context is one of ForRefresh.
func IsRefresh(ctx context.Context) bool { return ctx.Value(refreshKey{}) != nil }
