// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"errors"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestListIsCancellable checks that a list can be cancelled: in a folder of
// thousands it takes seconds on a busy host, and must not delay a controller that stops.
func TestListIsCancellable(t *testing.T) {
	t.Parallel()
	store, err := openDirStore(t.TempDir())
	assert.NoError(t, err)
	assert.NoError(t, store.dir.Create(store.dir.Path("5b3d1a0e-0000-4000-8000-000000000001"+fileSuffix), []byte("{}")))
	ctx, cancel := context.WithCancel(t.Context())
	if all, err := store.listRecords(ctx); err != nil || len(all) != 1 {
		t.Fatalf("list: %v, %v", all, err)
	}
	cancel()
	if all, err := store.listRecords(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("list of a context that has ended: %v, %v", all, err)
	}
}
