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

// warnAddressInUse warns of an endpoint whose default address is in use.
func warnAddressInUse(what, flag, address string) {
	ctrl.Log.Info("Warning: "+what+" left out: another process has its default address. Set a free one to serve it", "address", address, "flag", flag)
}

// managerAtFreePorts creates the manager. It leaves out endpoints whose default
// address is in use.
func managerAtFreePorts(ctx context.Context, o *Options, cfg *rest.Config, options ctrl.Options) (ctrl.Manager, error) {
	var listener net.Listener
	if o.defaultMetrics() {
		var err error
		options.Metrics.BindAddress = addressOff
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.MetricsAddress)
		if errors.Is(err, syscall.EADDRINUSE) {
			warnAddressInUse("metrics", "--metrics-bind-address", o.MetricsAddress)
		} else if err != nil {
			return nil, err
		}
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if errors.Is(err, syscall.EADDRINUSE) && !o.explicit.health {
		warnAddressInUse("health checks", "--health-probe-bind-address", o.HealthAddress)
		options.HealthProbeBindAddress = addressOff
		mgr, err = ctrl.NewManager(cfg, options)
	}
	if err != nil || listener == nil {
		return mgr, err
	}
	return mgr, mgr.Add(metricsServer(listener))
}

// defaultMetrics reports whether metrics may be left out: no flag requests them.
func (o *Options) defaultMetrics() bool {
	return !o.explicit.metrics && !o.MetricsSecure && o.MetricsAddress != addressOff
}

// metricsServer returns a server like the manager's own, but on a listener that is
// already open.
func metricsServer(listener net.Listener) *manager.Server {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	return &manager.Server{
		Name: "metrics", Listener: listener, ShutdownTimeout: new(time.Second),
		Server: &http.Server{Handler: mux, ReadHeaderTimeout: requestTimeout, IdleTimeout: 90 * time.Second},
	}
}
