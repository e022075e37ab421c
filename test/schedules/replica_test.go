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
	// engineTimeout does not coincide with the reconciler's, which ends first as it does
	// without a bubble.
	engineTimeout = 31 * time.Second
	bootTime      = 700 * time.Millisecond
	stopTime      = 1300 * time.Millisecond
)

// settings are the default ones, except that no two deadlines of an election coincide.
func settings() leader.Settings {
	s := leader.DefaultSettings()
	s.Renew = 9700 * time.Millisecond
	return s
}

// replica is a place where a process of Drover runs, one after the other.
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

	endAt    time.Time // when it is over after it was killed or has lost the Lease
	doomed   bool      // it was killed
	cutUntil time.Time // until when it does not reach the API

	inventory *inventory.Inventory
	// otherIDs is how many of its calls have got the id of the other engine and have not returned yet.
	otherIDs atomic.Int32

	dead   atomic.Bool // nothing that it does has an effect
	frozen atomic.Bool
	ended  atomic.Bool // it has ended by itself
	// stopping is set once the manager begins to stop. Which requests its workers still
	// take then is not reproducible, so they take none.
	stopping atomic.Bool
	// up is set once the manager has started. If it is stopped before, it spins until its
	// caches are filled, and no clock of a bubble advances then.
	up atomic.Bool
}

func (p *process) isDead() bool   { return p.dead.Load() }
func (p *process) isFrozen() bool { return p.frozen.Load() }

// hasEnded reports whether the process is over. One that gives up takes a while: how long
// its manager takes is not reproducible, so the seed decides.
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

// liveManager is a manager whose live reads are the process's.
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
		// Without a limit: a manager that reaches it reads the field that the loss of the
		// Lease writes, which the race detector reports.
		GracefulShutdownTimeout: new(time.Duration(-1)),
		LeaderElection:          true, LeaderElectionResourceLockInterface: p.lock,
		LeaderElectionID: leaseName, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &s.Lease, RenewDeadline: &s.Renew, RetryPeriod: &s.Retry,
	})
	return liveManager{mgr, p}, err
}

// warmUp is how long the controllers take to start their sources once the cache is filled.
// They hold a mutex until then, and a goroutine that waits for one stops a bubble's clock.
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

// stopNotice learns that the manager stops.
type stopNotice struct{ *process }

// NeedLeaderElection returns false: the manager runs it on standbys too.
func (stopNotice) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (n stopNotice) Start(ctx context.Context) error {
	<-ctx.Done()
	n.stopping.Store(true)
	return nil
}

// addController adds what the program adds to its manager.
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

// mayBindToOther reports whether the process binds to the other engine, or is about to: which
// engine answers it has from its inventory, and not from the engine.
func (p *process) mayBindToOther() bool {
	return p.otherIDs.Load() > 0 || p.inventory.Get("").EngineID == p.environment.otherID
}

// openEngines opens the engine, or the one that has taken its place.
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

// kill ends the process: no call or message goes on, and calls under way have no effect
// unless they are on their way to the engine or the API.
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
