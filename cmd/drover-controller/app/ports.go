// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Limits of connections to the metrics endpoint, as controller-runtime has them.
const (
	readHeaderTimeout = 32 * time.Second
	idleTimeout       = 90 * time.Second
)

// addressOff is the address that turns an endpoint off.
const addressOff = "0"

// address is the flag of an address to listen on. It records whether it is explicit:
// set by the flag or by an environment variable. An endpoint whose default address is
// in use is skipped; an explicit address that is in use is an error.
type address struct {
	value    *string
	explicit *bool
}

// String implements pflag.Value.
func (a address) String() string {
	if a.value == nil {
		return ""
	}
	return *a.value
}

// Set implements pflag.Value.
func (a address) Set(value string) error {
	*a.value, *a.explicit = value, true
	return nil
}

// Type implements pflag.Value.
func (a address) Type() string { return "string" }

// createManager returns a manager with the endpoints. It opens each listener once and keeps it, so that of two
// replicas that start on one host at the same time only one gets a default address.
func (o *Options) createManager(ctx context.Context, cfg *rest.Config, options ctrl.Options) (ctrl.Manager, error) {
	options.Metrics, options.HealthProbeBindAddress = metricsOptions(o), o.HealthAddress
	mgr, err := ctrl.NewManager(cfg, options)
	if skipInUse(err, "--health-probe-bind-address", &o.HealthAddress, o.explicit.health) {
		options.HealthProbeBindAddress = o.HealthAddress
		mgr, err = ctrl.NewManager(cfg, options)
	}
	if err != nil {
		return nil, err
	}
	return mgr, o.addMetrics(ctx, mgr)
}

// addMetrics serves metrics to all users of the host. The manager itself serves those of MetricsSecure.
func (o *Options) addMetrics(ctx context.Context, mgr ctrl.Manager) error {
	if o.MetricsSecure || o.MetricsAddress == addressOff {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.MetricsAddress)
	switch {
	case skipInUse(err, "--metrics-bind-address", &o.MetricsAddress, o.explicit.metrics):
		return nil
	case err != nil:
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	return mgr.Add(&manager.Server{
		Name: "metrics", Listener: listener, ShutdownTimeout: &o.StopTimeout,
		Server: &http.Server{Handler: mux, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout},
	})
}

// skipInUse turns off an endpoint whose default address another process has, so that replicas can share a host
// without flags. It reports whether it did.
func skipInUse(err error, flag string, address *string, isExplicit bool) bool {
	failed, ok := errors.AsType[*net.OpError](err)
	if !ok || isExplicit || !errors.Is(err, syscall.EADDRINUSE) || failed.Addr.String() != *address {
		return false
	}
	ctrl.Log.Info("Warning: endpoint left out: another process has its default address. Set a free one to serve it", "address", *address, "flag", flag)
	*address = addressOff
	return true
}
