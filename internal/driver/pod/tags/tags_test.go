// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tags

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/test/assert"
)

// TestSlowRepository checks that a repository is skipped for a while after its registry did not answer in
// time, that others of that registry are resolved, and that few are remembered.
func TestSlowRepository(t *testing.T) {
	t.Parallel()
	const slow, fast, digest = "oci://registry.example/mirror/slow:1", "oci://registry.example/disks/debian:12", "sha256:1"
	var asked atomic.Int32
	r := &Resolver{Clock: testingclock.NewFakePassiveClock(time.Now())}
	r.Resolve = func(ctx context.Context, from source.Source) (string, error) {
		if asked.Add(1); from.Text() == fast {
			return digest, nil
		}
		<-ctx.Done()
		return "", ctx.Err()
	}
	for _, want := range []int32{2, 3} { // the slow one once
		got := r.Digests(t.Context(), []source.Source{source.Parse(slow), source.Parse(fast)})
		assert.True(t, got[0].Digest == "" && got[0].Message == errSilent.Error() && got[1].Digest == digest && asked.Load() == want,
			"the images are %+v, and the registry was asked %d times, want %d", got, asked.Load(), want)
	}
	for n := range maxSilent + 1 {
		r.markSilent(fmt.Sprint("registry.example/", n))
	}
	n := r.silent.Len()
	assert.True(t, n == maxSilent, "%d repositories are remembered, want %d", n, maxSilent)
}
