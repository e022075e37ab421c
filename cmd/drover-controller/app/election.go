// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/drover-controller/apiserver"
	"cloudnative.tw/drover/internal/leader"
)

// newLock returns the Lock by which this process takes part in the election once it
// is warm, or nil without an election. conflict is called when another Drover leads
// in the cluster.
func newLock(o *Options, cfg *rest.Config, warm func(context.Context) error, conflict func(string)) (*leader.Lock, error) {
	if !o.LeaderElect {
		return nil, nil //nolint:nilnil // Nil is the answer for no election.
	}
	identity, err := leader.Identity(o.HolderIdentity)
	if err != nil {
		return nil, err
	}
	namespace, err := o.leaseNamespace()
	if err != nil {
		return nil, err
	}
	client, err := coordinationv1.NewForConfig(ownConnections(cfg))
	if err != nil {
		return nil, fmt.Errorf("client for the Lease: %w", err)
	}
	return leader.NewLock(leader.Options{
		Leases: client.Leases(namespace), Namespace: namespace, Name: o.LeaseLockName, Identity: identity,
		Settings: o.Election, Clock: clock.RealClock{}, Boot: leader.BootTime, Log: ctrl.Log.WithName("leader"), HolderGone: o.DeadHolder, Warm: warm,
		Claims: client.Leases(metav1.NamespaceSystem), Conflict: conflict,
	}), nil
}

// leaseNamespace returns the namespace of the Lease. With a kubeconfig it is not
// the pod's, since the kubeconfig may be for another cluster.
func (o *Options) leaseNamespace() (string, error) {
	if o.LeaseLockNamespace == "" && o.Kubeconfig != "" {
		return "default", nil
	}
	return leader.Namespace(o.LeaseLockNamespace)
}

// ownConnections gives the Lease separate connections that use HTTP/1.1. There a
// request that times out closes its connection. With HTTP/2 the next request would
// wait on the same dead connection.
func ownConnections(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.NextProtos = []string{"http/1.1"}
	cfg.QPS = -1
	return cfg
}

// newGuard returns the Lock's guard. Without election it returns a guard that is
// always open, with an epoch that grows from start to start.
func newGuard(ctx context.Context, reader client.Reader, lock *leader.Lock) (*leader.Guard, error) {
	epoch, err := apiserver.StartEpoch(ctx, reader) // this also fails if the CRD is not installed
	if err != nil {
		return nil, err
	}
	if lock == nil {
		return leader.AlwaysOpen(epoch), nil
	}
	return lock.Guard(), nil
}

// setElectionOptions makes the manager act only while this process leads, and stop before the
// Lease is released.
func setElectionOptions(m *ctrl.Options, o *Options, lock *leader.Lock) {
	if lock == nil {
		return
	}
	m.LeaderElection, m.LeaderElectionResourceLockInterface = true, lock
	m.LeaderElectionID, m.LeaderElectionReleaseOnCancel = o.LeaseLockName, true
	m.LeaseDuration, m.RenewDeadline, m.RetryPeriod = &o.Election.Lease, &o.Election.Renew, &o.Election.Retry
}

// runManager runs the manager until ctx ends or the Lease is lost, which is an error.
func runManager(ctx context.Context, mgr ctrl.Manager, lock *leader.Lock) error {
	if lock == nil {
		return startManager(ctx, mgr, endTimeout)
	}
	defer watchLease(ctx, lock)()
	if err := metrics.Registry.Register(lock.Collector()); err == nil {
		defer metrics.Registry.Unregister(lock.Collector())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-lock.Lost():
			cancel(lock.Err())
		case <-ctx.Done():
		}
	}()
	err := startManager(ctx, mgr, endTimeout)
	if lost := lock.Err(); errors.Is(lost, leader.ErrLost) {
		return lost
	}
	return withLastTry(ctx, err, lock)
}

// withLastTry adds the reason why the Lease could not be acquired or renewed to the error of a manager,
// which says only that the election was lost.
func withLastTry(ctx context.Context, err error, lock *leader.Lock) error {
	last := lock.TryErr()
	if err == nil || last == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: the last request about the Lease %s failed: %w", err, lock.Describe(), last)
}

// endTimeout is how long the manager may take to stop: more than its running calls and
// the release of the Lease may.
const endTimeout = 20 * time.Second

// errNotStopped means that the manager did not stop in time. It spins forever if it is
// stopped before its cache is filled, for example because the API is unreachable
// (controller-runtime v0.24). No worker has begun then.
var errNotStopped = errors.New("the manager did not stop in time")

// startManager runs the manager until ctx ends, and waits up to timeout for it to stop.
func startManager(ctx context.Context, mgr ctrl.Manager, timeout time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(timeout):
		return errNotStopped
	}
}

// fencingHandler connects an inventory to the election and to events, for an engine that
// refuses this process.
type fencingHandler struct {
	lock     *leader.Lock // nil without an election
	recorder events.EventRecorder
}

// leadershipCheck returns a function that reads the Lease, or nil without an election.
func (f fencingHandler) leadershipCheck() func(context.Context) (bool, error) {
	if f.lock == nil {
		return nil
	}
	return f.lock.Confirm
}

// refusalReporter returns a function that reports a driver whose engine refuses the
// leader.
func (f fencingHandler) refusalReporter(driver string) func(error) {
	report := clusterEvent(f.recorder, api.EventEngineFenced, "Suspend")
	return func(cause error) {
		report(fmt.Sprintf("the engine of driver %s refuses the leader, and its VirtualMachines wait until it does not: %v", driver, cause))
	}
}

// watchLease watches the Lease until end is called, after the release of the Lease.
func watchLease(ctx context.Context, lock *leader.Lock) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		lock.Watch(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// renewalCheck returns a check that fails on a leader that can no longer renew the
// Lease.
func renewalCheck(lock *leader.Lock) func(*http.Request) error {
	return func(*http.Request) error { return lock.Healthy() }
}
