// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storekeeper keeps etcd's store usable: it counts what each namespace stores, removes
// history, rewrites the file where that helps, and ends the alarm by which etcd refuses writes
// once there is room again.
//
// Start with Keeper.Run. plan.go decides, and count.go reads the store.
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

// Keeper keeps the store of one etcd.
type Keeper struct {
	Server   *etcdserver.EtcdServer
	Accounts *storequota.Accounts
	// FileLimit is the size of its file from which on etcd refuses writes.
	FileLimit int64
	// Publish gets the usage after each round.
	Publish func(Usage)
	Clock   clock.WithTicker
	Log     logr.Logger

	past         past
	counting     time.Duration // how long the last count took
	compacted    time.Time
	defragmented time.Time
}

// UsagePath is where the API serves a Usage as JSON.
const UsagePath = "/drover/store"

// Usage is the size of the store's content, in bytes.
type Usage struct {
	// Objects may have Quota bytes in all. History is the content that they replaced and that etcd
	// has not removed yet.
	Objects int64 `json:"objects"`
	Quota   int64 `json:"quota"`
	History int64 `json:"history"`
	// File is the size of etcd's file, of which InUse is not free. At FileLimit etcd refuses
	// all writes until IsFull is false again.
	File      int64 `json:"file"`
	InUse     int64 `json:"inUse"`
	FileLimit int64 `json:"fileLimit"`
	IsFull    bool  `json:"isFull"`
	// Refused counts the writes that were refused since the start.
	Refused int64 `json:"refused"`
	// Largest has the namespaces with the most bytes.
	Largest []storequota.NamespaceUsage `json:"largest"`
}

// Latest has the usage that was published last. Before that it is zero.
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

// Times of the loop. A count that takes long makes the next one wait longer, so that counts
// take at most a fiftieth of the time, or a fifth while much is written.
const (
	period      = 5 * time.Second
	leastPeriod = time.Second
	share       = 50
	callTimeout = 30 * time.Second
)

// Prepare brings the store in order before anyone uses it. A store that was full is writable
// afterwards, if there is room. What fails is tried again by Run.
func (k *Keeper) Prepare(ctx context.Context) { k.tryRound(ctx, true) }

// Run repeats rounds until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for k.waitForRound(ctx, max(period, share*k.counting), max(leastPeriod, share/10*k.counting)) {
		k.tryRound(ctx, false)
	}
}

func (k *Keeper) tryRound(ctx context.Context, isStart bool) {
	if err := k.runRound(ctx, isStart); err != nil && ctx.Err() == nil {
		k.Log.Error(err, "Could not keep etcd's store in order, will try again")
	}
}

// waitForRound waits for the next round, which begins earlier if much is written. It returns false if
// ctx ended.
func (k *Keeper) waitForRound(ctx context.Context, usual, least time.Duration) bool {
	for _, wait := range []struct {
		until   time.Duration
		pressed <-chan struct{}
	}{{least, nil}, {usual - least, k.Accounts.Pressed()}} {
		timer := k.Clock.NewTimer(wait.until)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-wait.pressed:
		case <-timer.C():
		}
		timer.Stop()
	}
	return true
}

// runRound counts the store, acts if that is needed, and publishes the result.
func (k *Keeper) runRound(ctx context.Context, isStart bool) error {
	k.Accounts.BeginCount()
	now := k.Clock.Now()
	k.past = append(k.past, moment{at: now, revision: k.Server.KV().Rev()})
	found, err := k.countStore(ctx)
	if err != nil {
		return fmt.Errorf("count the store: %w", err)
	}
	k.counting = k.Clock.Since(now)
	k.Accounts.EndCount(found.byNamespace)
	err = errors.Join(k.compactHistory(ctx, now, k.gatherFacts(found, isStart)), k.makeRoom(ctx, found, isStart))
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

// isFull reports whether etcd refuses writes for want of space.
func (k *Keeper) isFull() bool { return len(k.listAlarms()) > 0 }

// listAlarms returns the alarms about space. The other alarm, about a damaged database, is not
// for this package to end.
func (k *Keeper) listAlarms() []*etcdserverpb.AlarmMember {
	return slices.DeleteFunc(k.Server.Alarms(), func(a *etcdserverpb.AlarmMember) bool {
		return a.Alarm != etcdserverpb.AlarmType_NOSPACE
	})
}

// compactHistory removes history that is older than needed.
func (k *Keeper) compactHistory(ctx context.Context, now time.Time, f facts) error {
	if !f.shouldCompact() {
		return nil
	}
	revision := k.past.trimBefore(now.Add(-f.retention()))
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
	k.Server.Backend().ForceCommit() // pages that were freed count as free after the next commit
	return err
}

// announceCompaction tells kube-apiserver which history was removed, by the key that kube-apiserver's
// compaction uses. A full etcd refuses that, and the next compaction repeats it.
func (k *Keeper) announceCompaction(ctx context.Context, revision int64) error {
	if k.isFull() {
		return nil
	}
	_, err := k.Server.Put(ctx, &etcdserverpb.PutRequest{Key: []byte("compact_rev_key"), Value: []byte(strconv.FormatInt(revision, 10))})
	return err
}

// makeRoom rewrites the file and ends the alarm, if that is needed and helps.
func (k *Keeper) makeRoom(ctx context.Context, found *tally, isStart bool) error {
	if f := k.gatherFacts(found, isStart); f.shouldDefragment() {
		begin := k.Clock.Now()
		k.defragmented = begin
		if err := k.Server.Backend().Defrag(); err != nil {
			return fmt.Errorf("rewrite etcd's file: %w", err)
		}
		k.Log.Info("Rewrote etcd's file", "bytes", f.file, "bytesAfter", k.Server.Backend().Size(), "took", k.Clock.Since(begin))
	}
	if !k.gatherFacts(found, isStart).hasRoom() {
		return nil
	}
	return k.endAlarms(ctx)
}

func (k *Keeper) endAlarms(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, alarm := range k.listAlarms() {
		_, err := k.Server.Alarm(ctx, &etcdserverpb.AlarmRequest{
			Action: etcdserverpb.AlarmRequest_DEACTIVATE, Alarm: alarm.Alarm, MemberID: alarm.MemberID,
		})
		if err != nil {
			return fmt.Errorf("end the alarm of a full store: %w", err)
		}
		k.Log.Info("Ended etcd's alarm of a full store: it accepts writes again")
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
