// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import "context"

type refreshKey struct{}

// ForRefresh returns a context for a List by which a caller that follows Watch only looks again at what that has
// named. The driver may answer from what its watch has delivered, so what is missing in the list is not proven gone.
func ForRefresh(ctx context.Context) context.Context {
	return context.WithValue(ctx, refreshKey{}, true)
}

// IsRefresh reports whether a context is one of ForRefresh.
func IsRefresh(ctx context.Context) bool { return ctx.Value(refreshKey{}) != nil }
