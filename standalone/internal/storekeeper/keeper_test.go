// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package storekeeper

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.uber.org/zap"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/standalone/internal/storequota"
	"cloudnative.tw/drover/test/assert"
)

const (
	mebibyte = 1 << 20
	limit    = 24 * mebibyte
)

// startEtcd starts an etcd with a small limit, which ends with the test or by the function.
func startEtcd(t *testing.T, dir string) (*embed.Etcd, func()) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.QuotaBackendBytes, cfg.UnsafeNoFsync, cfg.LogLevel = dir, limit, true, "error"
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(dir, "client.sock")}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(dir, "peer.sock")}}
	e, err := embed.StartEtcd(cfg)
	assert.NoError(t, err)
	closed := false
	stop := func() {
		if !closed {
			closed = true
			e.Close()
		}
	}
	t.Cleanup(stop)
	select {
	case <-e.Server.ReadyNotify():
	case <-t.Context().Done():
		t.Fatal("etcd did not start")
	}
	return e, stop
}

func newKeeper(t *testing.T, e *embed.Etcd) (*Keeper, *clocktesting.FakeClock, *Latest) {
	t.Helper()
	clock, latest := clocktesting.NewFakeClock(time.Unix(1_000_000, 0)), &Latest{}
	return &Keeper{
		Server: e.Server, Accounts: storequota.NewAccounts(limit/3, clock), FileLimit: limit,
		Publish: latest.Set, Clock: clock, Log: testr.New(t),
	}, clock, latest
}

func put(t *testing.T, e *embed.Etcd, key string, size int) error {
	t.Helper()
	_, err := e.Server.Put(t.Context(), &etcdserverpb.PutRequest{Key: []byte(key), Value: make([]byte, size)})
	return err
}

func remove(t *testing.T, e *embed.Etcd, prefix string) {
	t.Helper()
	_, err := e.Server.DeleteRange(t.Context(), &etcdserverpb.DeleteRangeRequest{Key: []byte(prefix), RangeEnd: []byte(prefix + "\xff")})
	assert.NoError(t, err)
}

// fillUp writes until etcd refuses all writes, and deletes everything.
func fillUp(t *testing.T, e *embed.Etcd) {
	t.Helper()
	var err error
	for i := 0; err == nil; i++ {
		err = put(t, e, fmt.Sprintf("/registry/configmaps/a/%d", i), mebibyte)
	}
	if !errors.Is(err, etcderrors.ErrNoSpace) {
		t.Fatal(err)
	}
	remove(t, e, "/registry/configmaps/")
	if err := put(t, e, "x", 1); !errors.Is(err, etcderrors.ErrNoSpace) {
		t.Fatalf("a store that was full is writable by itself: %v", err)
	}
}

// TestFullStoreIsWellAtStart checks that a store that was full in the past is writable once
// Drover has started, and that its file is small again.
func TestFullStoreIsWellAtStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e, stop := startEtcd(t, dir)
	fillUp(t, e)
	stop()
	e, _ = startEtcd(t, dir)
	k, _, latest := newKeeper(t, e)
	k.Prepare(t.Context())
	assert.NoError(t, put(t, e, "x", 1))
	u := latest.Get()
	assert.True(t, !u.IsFull && u.File <= mebibyte && u.FileLimit == limit, "the usage is %+v", u)
}

// TestFullStoreRecovers checks that a store that gets full, and has nothing to remove at
// first, is writable soon after objects are deleted.
func TestFullStoreRecovers(t *testing.T) {
	t.Parallel()
	e, _ := startEtcd(t, t.TempDir())
	k, clock, latest := newKeeper(t, e)
	k.Prepare(t.Context())
	for i := 0; !latest.Get().IsFull; i++ { // rewriting the file makes some room the first times
		if put(t, e, fmt.Sprintf("/registry/configmaps/a/%d", i), mebibyte) != nil {
			clock.Step(fullPause)
			assert.NoError(t, k.runRound(t.Context(), false))
		}
	}
	u := latest.Get()
	assert.True(t, u.IsFull && u.Largest[0].Name == "a", "the usage of a full store is %+v", u)
	remove(t, e, "/registry/configmaps/")
	clock.Step(period)
	assert.NoError(t, k.runRound(t.Context(), false))
	clock.Step(2 * period)
	assert.NoError(t, k.runRound(t.Context(), false))
	assert.NoError(t, put(t, e, "x", 1))
}

// TestHistoryIsRemoved checks that one object that is written again and again does not fill
// the store.
func TestHistoryIsRemoved(t *testing.T) {
	t.Parallel()
	e, _ := startEtcd(t, t.TempDir())
	k, clock, latest := newKeeper(t, e)
	k.Prepare(t.Context())
	for range 60 {
		err := put(t, e, "/registry/configmaps/a/x", mebibyte)
		assert.Require(t, err == nil, "with %+v: %v", latest.Get(), err)
		clock.Step(period)
		assert.NoError(t, k.runRound(t.Context(), false))
	}
	u := latest.Get()
	assert.True(t, u.Objects <= 2*mebibyte && u.History <= 5*mebibyte, "the usage is %+v", u)
}

// TestFileIsReused checks that a file with much free room, near to its limit, is rewritten.
func TestFileIsReused(t *testing.T) {
	t.Parallel()
	e, _ := startEtcd(t, t.TempDir())
	k, clock, latest := newKeeper(t, e)
	k.Prepare(t.Context())
	for i := 0; e.Server.Backend().Size() <= limit/4*3; i++ {
		assert.NoError(t, put(t, e, fmt.Sprintf("/registry/configmaps/a/%d", i), mebibyte/4))
		e.Server.Backend().ForceCommit() // or the size is from before
	}
	remove(t, e, "/registry/configmaps/")
	assert.Eventually(t, "the file is small", func(t testing.TB) error { // etcd compacts in the background
		assert.NoError(t, k.runRound(t.Context(), false))
		clock.Step(shortRetention)
		u := latest.Get()
		return assert.ErrorUnless(u.File <= mebibyte, "the usage is %+v", u)
	})
}

// TestCount checks whose objects are counted for whom.
func TestCount(t *testing.T) {
	t.Parallel()
	e, _ := startEtcd(t, t.TempDir())
	for _, key := range []string{
		"/registry/configmaps/a/x", "/registry/services/specs/a/x", "/registry/cloudnative.tw/virtualmachines/a/x",
		"/registry/configmaps/b/x", "/registry/namespaces/a", "/registry/apiregistration.k8s.io/apiservices/v1.", "/registry/example.com/things/a",
		"/registry/ranges/serviceips", "compact_rev_key",
	} {
		assert.NoError(t, put(t, e, key, 1000))
		assert.NoError(t, put(t, e, key, 2000))
	}
	assert.NoError(t, put(t, e, "/registry/configmaps/c/x", 1000))
	remove(t, e, "/registry/configmaps/c/")
	k, _, _ := newKeeper(t, e)
	found, err := k.countStore(t.Context())
	assert.NoError(t, err)
	objects := func(name string) int64 { return found.byNamespace[name] / (2000 + storequota.ObjectOverhead) }
	assert.True(t, objects("a") == 3 && objects("b") == 1 && objects("") == 5 && found.byNamespace["c"] == 0 && found.history >= 10*1000,
		"the count is %v, with %d bytes of history", found.byNamespace, found.history)
}

// TestRunEnds checks that the loop works at once when much is written, and ends.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	e, _ := startEtcd(t, t.TempDir())
	k, clock, latest := newKeeper(t, e)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Run(ctx)
	}()
	assert.NoError(t, put(t, e, "/registry/configmaps/a/x", mebibyte))
	k.Accounts.RecordDeletion("a", limit)
	assert.Eventually(t, "a round is done before its usual time", func(testing.TB) error {
		if clock.HasWaiters() && clock.Since(time.Unix(1_000_000, 0)) < minPeriod {
			clock.Step(minPeriod)
		}
		return assert.ErrorUnless(latest.Get().Objects != 0, "nothing was counted")
	})
	cancel()
	<-done
}
