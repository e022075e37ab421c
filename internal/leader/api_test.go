// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/test/assert"
)

// leaseAPI is an API server with one Lease.
type leaseAPI struct {
	// claims is the API server with the cluster's claim; nil for none.
	claims *leaseAPI

	mu       sync.Mutex
	failure  error // the answer to every request but a watch, if set
	version  uint64
	lease    *coordinationv1.Lease
	watchers map[*watcher]bool
}

func newLeaseAPI() *leaseAPI { return &leaseAPI{version: 100, watchers: map[*watcher]bool{}} }

type watcher struct {
	api *leaseAPI
	via *connection
	out chan watch.Event
}

// sendEvent sends an event. The caller holds the API's lock.
func (w *watcher) sendEvent(e watch.Event) {
	if disconnected, _, _ := w.via.currentFaults(); !disconnected {
		w.out <- e
	}
}

func (w *watcher) Stop() {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.close()
}

// close ends the watch. The caller holds the lock.
func (w *watcher) close() {
	if w.api.watchers[w] {
		delete(w.api.watchers, w)
		close(w.out)
	}
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

// store replaces or, if lease is nil, deletes the Lease and notifies the watchers.
// The caller holds the lock.
func (a *leaseAPI) store(lease *coordinationv1.Lease, kind watch.EventType) *coordinationv1.Lease {
	a.version++
	shown := a.lease
	if lease != nil {
		lease = lease.DeepCopy()
		a.lease, shown = lease, lease
	} else {
		a.lease = nil
	}
	shown = shown.DeepCopy()
	shown.ResourceVersion = strconv.FormatUint(a.version, 10)
	if a.lease != nil {
		a.lease.ResourceVersion = shown.ResourceVersion
	}
	for w := range a.watchers {
		w.sendEvent(watch.Event{Type: kind, Object: shown.DeepCopy()})
	}
	return shown
}

var resource = coordinationv1.Resource("leases")

func (a *leaseAPI) get() (*coordinationv1.Lease, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.failure != nil:
		return nil, a.failure
	case a.lease == nil:
		return nil, apierrors.NewNotFound(resource, "it")
	}
	return a.lease.DeepCopy(), nil
}

func (a *leaseAPI) list() *coordinationv1.LeaseList {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := &coordinationv1.LeaseList{}
	all.ResourceVersion = strconv.FormatUint(a.version, 10)
	if a.lease != nil {
		all.Items = append(all.Items, *a.lease.DeepCopy())
	}
	return all
}

func (a *leaseAPI) create(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lease != nil {
		return nil, apierrors.NewAlreadyExists(resource, "it")
	}
	return a.store(lease, watch.Added), nil
}

func (a *leaseAPI) update(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.lease == nil:
		return nil, apierrors.NewNotFound(resource, "it")
	case a.lease.ResourceVersion != lease.ResourceVersion:
		return nil, apierrors.NewConflict(resource, "it", errors.New("it has changed"))
	}
	return a.store(lease, watch.Modified), nil
}

// edit does what a person does with kubectl. A nil change deletes the Lease.
func (a *leaseAPI) edit(change func(*coordinationv1.Lease)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if change == nil {
		a.store(nil, watch.Deleted)
		return
	}
	next := a.lease.DeepCopy()
	change(next)
	a.store(next, watch.Modified)
}

func (a *leaseAPI) holder() string {
	lease, err := a.get()
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func (a *leaseAPI) watch(via *connection, version uint64) *watcher {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := &watcher{api: a, via: via, out: make(chan watch.Event, 10000)}
	a.watchers[w] = true
	if a.lease != nil && a.version > version {
		w.sendEvent(watch.Event{Type: watch.Modified, Object: a.lease.DeepCopy()})
	}
	return w
}

// connection is one replica's connection to the API.
type connection struct {
	api *leaseAPI
	*connectionFaults
}

// connectionFaults is the state that all of a replica's requests share.
type connectionFaults struct {
	mu sync.Mutex

	// disconnected blocks all requests. Watches stay open and silent.
	disconnected bool
	// responseDelay delays answers; requests arrive at once.
	responseDelay time.Duration
	// requestDelay delays requests, even if the caller has given up.
	requestDelay time.Duration
	// before and after are called around requests. An error of theirs is the answer.
	before, after func(verb string) error

	contexts []context.Context // of the requests so far
	count    map[string]int    // of the requests, by verb
}

func newConnection(api *leaseAPI) *connection {
	return &connection{api: api, connectionFaults: &connectionFaults{count: map[string]int{}}}
}

func (w *connection) setHooks(before, after func(verb string) error) {
	w.setFaults(func(w *connection) { w.before, w.after = before, after })
}

// requests returns the contexts of all requests.
func (w *connection) requests() []context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.contexts)
}

func (w *connection) countOf(verb string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count[verb]
}

// request sends one that has a Lease as its answer.
func (w *connection) request(ctx context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	w.mu.Lock()
	w.contexts = append(w.contexts, ctx)
	w.count[verb]++
	before, after := w.before, w.after
	w.mu.Unlock()
	lease, err := sendRequest(ctx, w, func() (lease *coordinationv1.Lease, err error) {
		if before != nil {
			err = before(verb)
		}
		if err == nil {
			lease, err = do()
		}
		if err == nil && after != nil {
			err = after(verb)
		}
		return lease, err
	})
	if err != nil {
		return &coordinationv1.Lease{}, err // like client-go's
	}
	return lease, nil
}

func (w *connection) setFaults(change func(*connection)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

func (w *connection) disconnect() { w.setFaults(func(w *connection) { w.disconnected = true }) }

func (w *connection) reconnect() { w.setFaults(func(w *connection) { w.disconnected = false }) }

func (w *connection) currentFaults() (disconnected bool, responseDelay, requestDelay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.disconnected, w.responseDelay, w.requestDelay
}

// maxDelay is longer than any request takes.
const maxDelay = 5 * time.Second

type response[T any] struct {
	value T
	err   error
}

func sendRequest[T any](ctx context.Context, w *connection, do func() (T, error)) (T, error) {
	disconnected, responseDelay, requestDelay := w.currentFaults()
	var none T
	if disconnected {
		<-ctx.Done()
		return none, ctx.Err()
	}
	answers := make(chan response[T], 1)
	go func() {
		time.Sleep(requestDelay)
		value, err := do()
		time.Sleep(responseDelay)
		answers <- response[T]{value, err}
	}()
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case a := <-answers:
		return a.value, a.err
	}
}

func (w *connection) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return w.request(ctx, "get", w.api.get)
}

func (w *connection) List(ctx context.Context, _ metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	return sendRequest(ctx, w, func() (*coordinationv1.LeaseList, error) { return w.api.list(), nil })
}

func (w *connection) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return w.request(ctx, "create", func() (*coordinationv1.Lease, error) { return w.api.create(lease) })
}

func (w *connection) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return w.request(ctx, "update", func() (*coordinationv1.Lease, error) { return w.api.update(lease) })
}

func (w *connection) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	from, err := strconv.ParseUint(opts.ResourceVersion, 10, 64)
	if err != nil {
		return nil, err
	}
	events, err := sendRequest(ctx, w, func() (*watcher, error) { return w.api.watch(w, from), nil })
	if err != nil {
		return nil, err
	}
	return events, nil
}

// replica is one process.
type replica struct {
	*Lock
	conn *connection
	stop context.CancelFunc // a clean stop
	kill context.CancelFunc // a crash: nothing reaches the API after it
	done chan struct{}
}

func newOptions(leases Leases, identity string, s Settings) Options {
	begin := time.Now()
	return Options{
		Leases: leases, Namespace: "default", Name: "it", Identity: identity, Settings: s,
		Clock: clock.RealClock{}, Boot: func() time.Duration { return time.Since(begin) }, Log: logr.Discard(),
	}
}

// startReplica runs a replica on client-go's unmodified elector.
func startReplica(t *testing.T, api *leaseAPI, name string, s Settings, change ...func(*Options)) *replica {
	t.Helper()
	r := &replica{conn: newConnection(api), done: make(chan struct{})}
	o := newOptions(r.conn, name, s)
	if api.claims != nil {
		o.Claims = &connection{api: api.claims, connectionFaults: r.conn.connectionFaults}
	}
	for _, c := range change {
		c(&o)
	}
	r.Lock = NewLock(o)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: r.Lock, LeaseDuration: s.Lease, RenewDeadline: s.Renew, RetryPeriod: s.Retry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	assert.NoError(t, err)
	watching, unwatch := context.WithCancel(t.Context())
	electing, stop := context.WithCancel(t.Context())
	go r.Watch(watching)
	go func() {
		defer close(r.done)
		elector.Run(electing)
	}()
	r.stop = func() {
		stop()
		<-r.done
		unwatch()
	}
	r.kill = func() {
		r.conn.disconnect()
		r.stop()
	}
	t.Cleanup(func() {
		r.stop()
		time.Sleep(maxDelay) // requests under way arrive
	})
	return r
}

func (r *replica) isLeading() bool {
	select {
	case <-r.done:
		return false
	default:
	}
	leading, err := r.leadership.currentState()
	return leading && err == nil
}

// mayAct reports whether a call could start now.
func (r *replica) mayAct(t *testing.T) bool {
	t.Helper()
	_, _, leave, err := r.Guard().Enter(t.Context())
	if err != nil {
		return false
	}
	leave()
	return true
}
