// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storekeeper keeps etcd's store usable: it counts the bytes that each namespace stores,
// compacts history, and defragments the database file if that frees space. Once there is enough
// space, it disarms the alarm NOSPACE, with which etcd refuses writes.
//
// Start with Keeper.Run. plan.go decides what to do, and count.go reads the store.
package storekeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/standalone/internal/storequota"
)

// Keeper maintains the store of one etcd server.
type Keeper struct {
	Server   *etcdserver.EtcdServer
	Accounts *storequota.Accounts
	// FileLimit is the size of the database file at which etcd starts to refuse writes.
	FileLimit int64
	// Publish is called with the usage after each round.
	Publish func(Usage)
	Clock   clock.WithTicker
	Log     logr.Logger

	revisions     revisionHistory
	countDuration time.Duration // of the last count
	compacted     time.Time
	defragmented  time.Time
}

// UsagePath is where the API serves a Usage as JSON.
const UsagePath = "/drover/store"

// Usage is the size of the store's content, in bytes.
type Usage struct {
	// Objects is the size of all objects, which Quota limits. History is the size of replaced content
	// that etcd has not removed yet.
	Objects int64 `json:"objects"`
	Quota   int64 `json:"quota"`
	History int64 `json:"history"`
	// File is the size of etcd's file, and InUse the size of the part that is not free. At FileLimit
	// etcd refuses all writes, and IsFull is set until it accepts writes again.
	File      int64 `json:"file"`
	InUse     int64 `json:"inUse"`
	FileLimit int64 `json:"fileLimit"`
	IsFull    bool  `json:"isFull"`
	// Refused counts the writes that were refused since the start.
	Refused int64 `json:"refused"`
	// Largest has the namespaces with the most bytes.
	Largest []storequota.NamespaceUsage `json:"largest"`
}

// Latest has the last published usage, or the zero value before the first.
type Latest struct {
	mu    sync.Mutex
	usage Usage
}

// Set replaces the usage.
func (l *Latest) Set(u Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage = u
}

// Get returns the usage.
func (l *Latest) Get() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usage
}

// The time between two rounds is period, or minPeriod under a heavy write load. After a slow count it is
// longer: waitFactor times the duration of the count, or a tenth of that under a heavy write load.
const (
	period      = 5 * time.Second
	minPeriod   = time.Second
	waitFactor  = 50
	callTimeout = 30 * time.Second
)

// Prepare runs a round before anyone uses the store. A full store is writable afterwards, if the round
// can free enough space. If the round fails, Run tries again.
func (k *Keeper) Prepare(ctx context.Context) { k.tryRound(ctx, true) }

// Run repeats rounds until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for k.waitForRound(ctx, max(period, waitFactor*k.countDuration), max(minPeriod, waitFactor/10*k.countDuration)) {
		k.tryRound(ctx, false)
	}
}

func (k *Keeper) tryRound(ctx context.Context, isStart bool) {
	if err := k.runRound(ctx, isStart); err != nil && ctx.Err() == nil {
		k.Log.Error(err, "Could not maintain etcd's store, will try again")
	}
}

// waitForRound waits for the duration usual, or only for minimum under a heavy write load. It returns false if ctx has
// ended.
func (k *Keeper) waitForRound(ctx context.Context, usual, minimum time.Duration) bool {
	for _, wait := range []struct {
		duration   time.Duration
		heavyLoads <-chan struct{}
	}{{minimum, nil}, {usual - minimum, k.Accounts.HeavyLoads()}} {
		timer := k.Clock.NewTimer(wait.duration)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-wait.heavyLoads:
		case <-timer.C():
		}
		timer.Stop()
	}
	return true
}

// runRound counts the store, removes history and frees space if necessary, and publishes the usage.
func (k *Keeper) runRound(ctx context.Context, isStart bool) error {
	k.Accounts.BeginCount()
	now := k.Clock.Now()
	k.revisions = append(k.revisions, timedRevision{at: now, revision: k.Server.KV().Rev()})
	found, err := k.countStore(ctx)
	if err != nil {
		return fmt.Errorf("count the store: %w", err)
	}
	k.countDuration = k.Clock.Since(now)
	k.Accounts.EndCount(found.byNamespace)
	err = errors.Join(k.compactHistory(ctx, now, k.gatherFacts(found, isStart)), k.freeSpace(ctx, found, isStart))
	k.publishUsage(found)
	return err
}

func (k *Keeper) gatherFacts(found *tally, isStart bool) facts {
	backend := k.Server.Backend()
	return facts{
		quota: k.Accounts.Quota(), fileLimit: k.FileLimit, file: backend.Size(), inUse: backend.SizeInUse(),
		objects: found.objectBytes(), history: found.history, isFull: k.isFull(), isStart: isStart,
		sinceCompact: k.Clock.Since(k.compacted), sinceDefragment: k.Clock.Since(k.defragmented),
	}
}

// isFull reports whether etcd refuses writes because its file is full.
func (k *Keeper) isFull() bool { return len(k.listAlarms()) > 0 }

// listAlarms returns the alarms NOSPACE. This package must not disarm alarms of the other kind, CORRUPT.
func (k *Keeper) listAlarms() []*etcdserverpb.AlarmMember {
	return slices.DeleteFunc(k.Server.Alarms(), func(a *etcdserverpb.AlarmMember) bool {
		return a.Alarm != etcdserverpb.AlarmType_NOSPACE
	})
}

// compactHistory removes history that is older than the retention.
func (k *Keeper) compactHistory(ctx context.Context, now time.Time, f facts) error {
	if !f.shouldCompact() {
		return nil
	}
	revision := k.revisions.trimBefore(now.Add(-f.retention()))
	if revision == 0 {
		return nil
	}
	k.compacted = now
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := k.Server.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: revision, Physical: true})
	if errors.Is(err, mvcc.ErrCompacted) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the history before revision %d: %w", revision, err)
	}
	err = k.announceCompaction(ctx, revision)
	k.Server.Backend().ForceCommit() // so that the freed pages count as free
	return err
}

// announceCompaction tells kube-apiserver which history was removed, with the key that kube-apiserver's
// compaction uses. A full etcd would refuse the write; the next compaction repeats it.
func (k *Keeper) announceCompaction(ctx context.Context, revision int64) error {
	if k.isFull() {
		return nil
	}
	_, err := k.Server.Put(ctx, &etcdserverpb.PutRequest{Key: []byte("compact_rev_key"), Value: []byte(strconv.FormatInt(revision, 10))})
	return err
}

// freeSpace defragments the file if that frees space, and disarms the alarms if there is enough space.
func (k *Keeper) freeSpace(ctx context.Context, found *tally, isStart bool) error {
	if f := k.gatherFacts(found, isStart); f.shouldDefragment() {
		begin := k.Clock.Now()
		k.defragmented = begin
		if err := k.Server.Backend().Defrag(); err != nil {
			return fmt.Errorf("defragment etcd's file: %w", err)
		}
		k.Log.Info("Defragmented etcd's file", "bytes", f.file, "bytesAfter", k.Server.Backend().Size(), "took", k.Clock.Since(begin))
	}
	if !k.gatherFacts(found, isStart).hasSpace() {
		return nil
	}
	return k.disarmAlarms(ctx)
}

func (k *Keeper) disarmAlarms(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, alarm := range k.listAlarms() {
		_, err := k.Server.Alarm(ctx, &etcdserverpb.AlarmRequest{
			Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: alarm.Alarm, MemberID: alarm.MemberID,
		})
		if err != nil {
			return fmt.Errorf("disarm etcd's alarm NOSPACE: %w", err)
		}
		k.Log.Info("Disarmed etcd's alarm NOSPACE: etcd accepts writes again")
	}
	return nil
}

func (k *Keeper) publishUsage(found *tally) {
	f := k.gatherFacts(found, false)
	u := Usage{Quota: f.quota, History: f.history, File: f.file, InUse: f.inUse, FileLimit: f.fileLimit, IsFull: f.isFull}
	const shown = 5
	u.Objects, u.Refused, u.Largest = k.Accounts.Largest(shown)
	k.Publish(u)
}
