// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fencing"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/leader"
)

const (
	leaseName   = "drover-controller"
	orphanGrace = time.Minute
	// engineTimeout is a little longer than the reconciler's timeout, so that they do not
	// coincide and the reconciler's ends first, as outside of a bubble.
	engineTimeout = 31 * time.Second
	bootTime      = 700 * time.Millisecond
	stopTime      = 1300 * time.Millisecond
)

// settings returns the default settings, changed so that no two deadlines of an election coincide.
func settings() leader.Settings {
	s := leader.DefaultSettings()
	s.Renew = 9700 * time.Millisecond
	return s
}

// replica runs processes of Drover, one after the other.
type replica struct {
	environment *environment
	name        string
	process     *process // nil while none runs
	started     int
	startAt     time.Time
}

// process is a process of Drover.
type process struct {
	replica     *replica
	environment *environment
	name        string
	clock       *processClock
	lock        *leader.Lock
	ctx         context.Context
	cancel      context.CancelFunc

	endAt    time.Time // the end of a process that was killed or has lost the Lease
	doomed   bool      // set if the process was killed
	cutUntil time.Time // the end of a disconnection from the API

	inventory *inventory.Inventory
	// otherIDs is how many calls of EngineID have read the id of the other engine and not returned yet.
	otherIDs atomic.Int32

	dead   atomic.Bool // its calls have no effect any more
	frozen atomic.Bool
	ended  atomic.Bool // the process has ended by itself
	// stopping is set once the manager begins to stop. Then its workers take no requests:
	// which ones they would still take is not reproducible.
	stopping atomic.Bool
	// up is set once the manager has started. A manager that is stopped before spins until its
	// caches are filled, and while it spins the bubble's clock does not advance.
	up atomic.Bool
}

func (p *process) isDead() bool   { return p.dead.Load() }
func (p *process) isFrozen() bool { return p.frozen.Load() }

// hasEnded reports whether the process has ended. How long its manager takes after it has lost
// the Lease is not reproducible, so the seed determines it.
func (p *process) hasEnded(random *rand.Rand) bool {
	select {
	case <-p.lock.Lost():
	default:
		if !p.doomed && !p.ended.Load() {
			return false
		}
	}
	if p.endAt.IsZero() && !p.isFrozen() {
		p.endAt = time.Now().Add(time.Duration(random.Int64N(int64(time.Second))))
	}
	return p.doomed || !p.endAt.IsZero() && !p.isFrozen() && !time.Now().Before(p.endAt)
}

// start starts a process of the replica.
func (r *replica) start() error {
	r.started++
	p := &process{replica: r, environment: r.environment, name: fmt.Sprintf("%s.%d", r.name, r.started)}
	p.clock = &processClock{process: p}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	mgr, err := p.newManager()
	if err != nil {
		return err
	}
	if err := p.addController(mgr); err != nil {
		return err
	}
	r.process = p
	go p.run(mgr)
	return nil
}

// liveManager is a manager whose live reads go through the gate.
type liveManager struct {
	ctrl.Manager

	process *process
}

// GetAPIReader implements ctrl.Manager.
func (m liveManager) GetAPIReader() client.Reader { return liveReader{m.process} }

func (p *process) newManager() (ctrl.Manager, error) {
	var mgr ctrl.Manager
	s := settings()
	p.lock = leader.NewLock(leader.Options{
		Leases: leaseClient{p, metav1.NamespaceDefault}, Namespace: metav1.NamespaceDefault, Name: leaseName, Identity: p.name,
		Settings: s, Clock: p.clock, Boot: p.clock.boot, Log: logr.Discard(),
		Warm: func(ctx context.Context) error {
			p.up.Store(true)
			return waitForCache(ctx, mgr)
		},
		Claims: leaseClient{p, metav1.NamespaceSystem},
	})
	mgr, err := ctrl.NewManager(&rest.Config{Host: "nowhere", QPS: -1}, ctrl.Options{
		Scheme: p.environment.scheme, Logger: logr.Discard(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return p.environment.mapper, nil },
		Cache:          cache.Options{NewInformer: p.newInformer},
		NewClient: func(_ *rest.Config, o client.Options) (client.Client, error) {
			return vmClient{process: p, cache: o.Cache.Reader}, nil
		},
		Metrics: metricsserver.Options{BindAddress: "0"},
		// No timeout: after a timeout the manager reads a field that is written concurrently
		// when the Lease is lost, which the race detector reports.
		GracefulShutdownTimeout: new(time.Duration(-1)),
		LeaderElection:          true, LeaderElectionResourceLockInterface: p.lock,
		LeaderElectionID: leaseName, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &s.Lease, RenewDeadline: &s.Renew, RetryPeriod: &s.Retry,
	})
	return liveManager{mgr, p}, err
}

// warmUp is more than the controllers need to start their sources once the cache is filled. They
// hold a mutex until then, and a goroutine that waits for a mutex stops a bubble's clock.
const warmUp = 500 * time.Millisecond

// waitForCache waits until the cache has all VirtualMachines, as the program does.
func waitForCache(ctx context.Context, mgr ctrl.Manager) error {
	if _, err := mgr.GetCache().GetInformer(ctx, &api.VirtualMachine{}, cache.BlockUntilSynced(false)); err != nil {
		return err
	}
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return fmt.Errorf("the cache is not filled: %w", context.Cause(ctx))
	}
	select {
	case <-time.After(warmUp):
	case <-ctx.Done():
	}
	return nil
}

func (p *process) newInformer(_ toolscache.ListerWatcher, object runtime.Object, _ time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(vmLister{p}, object, 0, indexers)
}

// stopNotice records that the manager stops.
type stopNotice struct{ *process }

// NeedLeaderElection returns false, so that standbys run it too.
func (stopNotice) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (n stopNotice) Start(ctx context.Context) error {
	<-ctx.Done()
	n.stopping.Store(true)
	return nil
}

// addController adds the same parts to a manager as drover-controller.
func (p *process) addController(mgr ctrl.Manager) error {
	engine, err := p.openEngines()
	if err != nil {
		return err
	}
	guard := p.lock.Guard()
	inv, err := inventory.New(inventory.Options{
		Name: fake.Name, Driver: fencing.Wrap(fake.Name, engine, guard, logr.Discard(), nil), Clock: p.clock, Log: logr.Discard(),
		ConfirmLeading: p.lock.Confirm, CallTimeout: engineTimeout,
	})
	if err != nil {
		return err
	}
	p.inventory = inv
	reconcilers, err := controller.Setup(p.ctx, mgr, controller.Options{
		Inventories: []*inventory.Inventory{inv}, Threads: workers, Clock: p.clock, Recorder: p.environment, Epoch: guard.Epoch, MayAct: guard.Check, NewQueue: newQueue(p),
		Decisions: p.newRecorder(guard.Epoch),
	})
	if err != nil {
		return err
	}
	if err := errors.Join(mgr.Add(inv), mgr.Add(stopNotice{p})); err != nil {
		return err
	}
	return mgr.Add(&inventory.Sweep{
		Inventory: inv, Epoch: guard.Epoch, Report: reconcilers[0].ReportFinding, Policy: inventory.OrphanDelete, Grace: orphanGrace,
		Cached: owners(mgr.GetClient()), Live: owners(mgr.GetAPIReader()),
	})
}

// mayBindToOther reports whether the process may bind VirtualMachines to the other engine: its
// inventory has the other engine's id, or is about to get it.
func (p *process) mayBindToOther() bool {
	return p.otherIDs.Load() > 0 || p.inventory.Get("").EngineID == p.environment.otherID
}

// openEngines opens drivers of both engines.
func (p *process) openEngines() (engineClient, error) {
	open := func(memory *fake.Memory) (*fake.Driver, error) {
		return fake.New(fake.Options{
			ClusterID: "cluster", Memory: memory, BootTime: bootTime, ShutdownTime: stopTime, NewName: p.environment.newName, Log: logr.Discard(),
		})
	}
	engine, err := open(p.environment.memory)
	other, otherErr := open(p.environment.other)
	return engineClient{p, engine, other}, errors.Join(err, otherErr)
}

func owners(reader client.Reader) inventory.Owners {
	return func(ctx context.Context) (map[types.UID]bool, error) {
		var all api.VirtualMachineList
		if err := reader.List(ctx, &all); err != nil {
			return nil, err
		}
		uids := map[types.UID]bool{}
		for n := range all.Items {
			uids[all.Items[n].UID] = true
		}
		return uids, nil
	}
}

// run runs the process until it is stopped, is killed or loses the Lease.
func (p *process) run(mgr ctrl.Manager) {
	watching, unwatch := context.WithCancel(context.WithoutCancel(p.ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		p.lock.Watch(watching)
	}()
	ctx, cancel := context.WithCancel(p.ctx)
	go func() {
		select {
		case <-p.lock.Lost():
			cancel()
		case <-ctx.Done():
		}
	}()
	_ = mgr.Start(ctx)
	cancel()
	p.ended.Store(true)
	p.environment.gate.wake()
	unwatch()
	<-watched
}

// kill ends the process. Its calls and messages are dropped, except calls that survive has
// selected as already sent.
func (p *process) kill() {
	p.dead.Store(true)
	p.frozen.Store(false)
	for _, o := range p.environment.gate.drop(func(o *operation) bool { return o.owner == p }) {
		p.environment.survive(o)
		if o.answer != nil {
			o.fail(errKilled)
			o.answer <- struct{}{}
		}
	}
	p.environment.dying = append(p.environment.dying, p)
}
