// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/drover-controller/apiserver"
	"cloudnative.tw/drover/internal/controller"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fencing"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/internal/logrepeat"
)

// closeTimeout is how long Run waits for the drivers' background work to end after it has
// cancelled this work.
const closeTimeout = 400 * time.Millisecond

// Run runs the controller until ctx ends.
func Run(ctx context.Context, o *Options, cfg *rest.Config) error {
	cfg = configFor(cfg)
	ctx = useLog(ctx, klog.Background())
	var mgr ctrl.Manager
	var recorder events.EventRecorder
	lock, err := newLock(o, cfg, func(ctx context.Context) error { return apiserver.WaitForCache(ctx, mgr) },
		func(text string) { clusterEvent(recorder, api.EventLeaderConflict, "Elect")(text) })
	if err != nil {
		return err
	}
	mgr, err = newManager(ctx, o, cfg, lock)
	if err != nil {
		return err
	}
	guard, err := newGuard(ctx, mgr.GetAPIReader(), lock)
	if err == nil && !o.OwnCRD {
		err = apiserver.CheckCRD(ctx, cfg)
	}
	if err != nil {
		return err
	}
	var endEvents func()
	recorder, endEvents, err = newRecorder(ctx, mgr)
	if err != nil {
		return err
	}
	defer endEvents()
	inventories, closeDrivers, err := openInventories(ctx, o, mgr, cfg, guard, fencingHandler{lock, recorder})
	if err != nil {
		return err
	}
	defer closeDrivers()
	history, err := newHistory(o, lock, guard)
	if err != nil {
		return err
	}
	if err := addRunnables(ctx, mgr, o, controller.Options{
		Inventories: inventories, Threads: o.Threads, Clock: clock.RealClock{}, Recorder: recorder,
		Epoch: guard.Epoch, MayAct: guard.Check, Decisions: history,
	}); err != nil {
		return err
	}
	return runManager(ctx, mgr, lock)
}

// useLog makes client-go and controller-runtime log without repeating an error with every try.
func useLog(ctx context.Context, log logr.Logger) context.Context {
	log = logrepeat.New(log, clock.RealClock{})
	ctrl.SetLogger(log)
	return logr.NewContext(ctx, log)
}

// addRunnables registers this process's controllers and servers with the manager.
func addRunnables(ctx context.Context, mgr ctrl.Manager, o *Options, settings controller.Options) error {
	if err := addDriverControllers(ctx, mgr, o, settings); err != nil {
		return err
	}
	if err := addStreams(ctx, mgr, o, settings); err != nil {
		return err
	}
	listed := apiserver.AnnounceWait(ctrl.Log, "Waiting until all VirtualMachines are listed", "hint", "see the errors above; if the API server forbids the list, apply this version's RBAC")
	return mgr.Add(&starter{mgr: mgr, defaultDriver: settings.Inventories[0], listed: listed, started: func() {
		if o.Started != nil {
			o.Started()
		}
	}})
}

// configFor returns the client configuration of this program.
func configFor(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // API Priority and Fairness limits the rate
	addCrashPoints(cfg)
	return rest.AddUserAgent(cfg, "drover-controller/"+Version)
}

// starter calls started when the cache is filled, this process leads or stands by, and it is known whether the engine
// of the default driver answers.
type starter struct {
	mgr           ctrl.Manager
	defaultDriver *inventory.Inventory
	// listed is called as soon as the cache is filled.
	listed, started func()
}

// NeedLeaderElection returns false: the manager runs it on standbys too.
func (s *starter) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (s *starter) Start(ctx context.Context) error {
	if err := apiserver.WaitForCache(ctx, s.mgr); err == nil {
		s.listed()
		select {
		case <-s.defaultDriver.Tried:
			s.started()
		case <-ctx.Done():
		}
	}
	return nil
}

func newManager(ctx context.Context, o *Options, cfg *rest.Config, lock *leader.Lock) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	for _, c := range inventory.Metrics() {
		if err := metrics.Registry.Register(c); err != nil && !isRegistered(err) {
			return nil, err
		}
	}
	options := ctrl.Options{
		Scheme: scheme, Logger: ctrl.Log, MapperProvider: newMapper,
		Cache:                   cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		PprofBindAddress:        o.PprofAddress,
		GracefulShutdownTimeout: &o.StopTimeout,
	}
	setElectionOptions(&options, o, lock)
	mgr, err := o.createManager(ctx, cfg, options)
	if err != nil {
		return nil, err
	}
	return mgr, healthChecks(mgr, lock)
}

// newMapper returns controller-runtime's dynamic REST mapper, with a timeout for each request.
func newMapper(cfg *rest.Config, client *http.Client) (meta.RESTMapper, error) {
	limited := *client
	limited.Timeout = apiserver.RequestTimeout
	return apiutil.NewDynamicRESTMapper(cfg, &limited)
}

// metricsOptions returns the settings of the manager's metrics endpoint, which is off unless MetricsSecure is
// set: then the API server decides who may read metrics.
func metricsOptions(o *Options) metricsserver.Options {
	if !o.MetricsSecure {
		return metricsserver.Options{BindAddress: addressOff}
	}
	return metricsserver.Options{
		BindAddress: o.MetricsAddress, SecureServing: true, CertDir: o.MetricsCertDir,
		FilterProvider: filters.WithAuthenticationAndAuthorization,
	}
}

func healthChecks(mgr ctrl.Manager, lock *leader.Lock) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if lock != nil {
		if err := mgr.AddHealthzCheck("leader", renewalCheck(lock)); err != nil {
			return err
		}
	}
	return mgr.AddReadyzCheck("caches", apiserver.CacheCheck(mgr))
}

// ClusterID returns the cluster's identity: the UID of namespace kube-system.
func ClusterID(ctx context.Context, reader client.Reader) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.RequestTimeout)
	defer cancel()
	defer apiserver.AnnounceWait(ctrl.Log, "Waiting until the API server answers", "request", "read namespace "+metav1.NamespaceSystem)()
	var ns corev1.Namespace
	if err := reader.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, &ns); err != nil {
		return "", fmt.Errorf("read namespace %s for the cluster's id: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

func openInventories(ctx context.Context, o *Options, mgr ctrl.Manager, cfg *rest.Config, gate fencing.Gate, f fencingHandler) (all []*inventory.Inventory, closeDrivers func(), err error) {
	cluster, err := ClusterID(ctx, mgr.GetAPIReader())
	if err == nil {
		err = apiserver.IndexOwners(ctx, mgr)
	}
	if err != nil {
		return nil, nil, err
	}
	find := apiserver.CachedVM(ctx, mgr.GetCache())
	opened, err := registry.Open(ctx, o.VMDriver, registry.Options{
		Settings: o.Drivers, Gate: gate,
		Environment: driver.Environment{
			ClusterID: cluster, OwnDirs: o.OwnDirs, Clock: clock.RealClock{}, Log: ctrl.Log, Registerer: metrics.Registry,
			Cluster: cfg, Owner: apiserver.OwnerIn(find), PodAssertedOff: apiserver.PodAssertedOffIn(find),
		},
	})
	if err != nil {
		return nil, nil, err
	}
	for _, d := range opened {
		inv, err := inventory.New(inventory.Options{
			Name: d.Name, Driver: d.Driver, Clock: clock.RealClock{}, Log: ctrl.Log,
			ListPeriod: o.ListPeriod, UsagePeriod: o.UsagePeriod,
			ConfirmLeading: f.leadershipCheck(), OnFenced: f.refusalReporter(d.Name),
		})
		if err != nil {
			return nil, nil, err
		}
		all = append(all, inv)
	}
	return all, func() { closeOpenedDrivers(ctx, opened) }, nil
}

// closeOpenedDrivers closes the drivers after ctx has ended.
func closeOpenedDrivers(ctx context.Context, opened []registry.Opened) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := registry.Close(ctx, opened); err != nil {
		ctrl.Log.Info("Background work of a driver has not ended in time", "cause", err.Error())
	}
}

// addDriverControllers adds a per-driver controller for each inventory to the
// manager.
func addDriverControllers(ctx context.Context, mgr ctrl.Manager, o *Options, settings controller.Options) error {
	reconcilers, err := controller.Setup(ctx, mgr, settings)
	if err != nil {
		return err
	}
	for _, r := range reconcilers {
		if err := addInventory(mgr, o, r); err != nil {
			return err
		}
	}
	return nil
}

// addInventory adds a driver's inventory and its orphan sweep to the manager.
func addInventory(mgr ctrl.Manager, o *Options, r *controller.Reconciler) error {
	if err := mgr.Add(r.Inventory); err != nil {
		return err
	}
	return mgr.Add(&inventory.Sweep{
		Inventory: r.Inventory, Epoch: r.Epoch, Report: r.ReportFinding,
		Policy: inventory.OrphanPolicy(o.OrphanPolicy), Grace: o.OrphanGrace, Max: o.OrphanMax,
		Cached: apiserver.CachedOwners(mgr.GetClient(), client.UnsafeDisableDeepCopy),
		Live:   apiserver.LiveOwners(mgr.GetAPIReader()), Approved: apiserver.ApprovedOrphans(mgr.GetAPIReader()),
	})
}

func isRegistered(err error) bool {
	return errors.As(err, &prometheus.AlreadyRegisteredError{})
}
