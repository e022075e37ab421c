// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"cloudnative.tw/drover/internal/controller"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/streams"
	"cloudnative.tw/drover/internal/streams/endpoint"
)

// StreamsOptions say where consoles, logs, commands and ports are served.
type StreamsOptions struct {
	// Address to listen on; empty means that this program opens none.
	Address string
	// CertDir and URL belong to Address.
	CertDir, URL string
	PerVM, Total int
	// Serve, if not nil, is called with the handler of streams for users that the caller has
	// authenticated.
	Serve func(http.Handler)
}

func defaultStreams() StreamsOptions { return StreamsOptions{PerVM: 128, Total: 1000} }

// addEndpointFlags adds the flags of an address for streams alone.
func (o *StreamsOptions) addEndpointFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Address, "streams-address", o.Address, "address that serves consoles, logs, commands and ports of VMs by HTTPS, such as :9444; empty turns that off")
	fs.StringVar(&o.CertDir, "streams-cert-dir", o.CertDir, "folder with tls.crt and tls.key for --streams-address, and with ca.crt for its clients; read again when they change")
	fs.StringVar(&o.URL, "streams-url", o.URL, "URL at which clients reach --streams-address, such as https://drover.example:9444; published in the ConfigMap drover-streams of kube-system")
}

func (o *StreamsOptions) addLimitFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.PerVM, "streams-per-vm", o.PerVM, "number of consoles, logs, commands and ports that may be open at a time for one VM")
	fs.IntVar(&o.Total, "streams-max", o.Total, "number of consoles, logs, commands and ports that may be open at a time for all VMs; one user may open a quarter of them and one namespace three quarters, and each at least --streams-per-vm")
}

func (o *StreamsOptions) validate() error {
	switch {
	case o.PerVM < 1:
		return fmt.Errorf("--streams-per-vm is %d: it must be at least 1", o.PerVM)
	case o.Total < 1:
		return fmt.Errorf("--streams-max is %d: it must be at least 1", o.Total)
	case o.Address == "" && o.CertDir != "":
		return errors.New("--streams-cert-dir is given without --streams-address")
	case o.Address == "" && o.URL != "":
		return errors.New("--streams-url is given without --streams-address")
	case o.Address == "":
		return nil
	case o.CertDir == "":
		return errors.New("--streams-address is given without --streams-cert-dir: it must have tls.crt, tls.key and ca.crt")
	}
	return o.validateAddresses()
}

func (o *StreamsOptions) validateAddresses() error {
	if _, port, err := net.SplitHostPort(o.Address); err != nil || port == "" {
		return fmt.Errorf("--streams-address is %q: it must be HOST:PORT or :PORT", o.Address)
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("--streams-url is %q: it must be https://HOST or https://HOST:PORT, the address at which clients reach --streams-address", o.URL)
	}
	return nil
}

// addStreams adds what serves streams, if anything does, to the manager.
func addStreams(ctx context.Context, mgr ctrl.Manager, o *Options, settings controller.Options) error {
	if o.Streams.Address == "" && o.Streams.Serve == nil {
		return nil
	}
	rights, err := endpoint.NewAuthorizer(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	drivers := map[string]driver.Driver{}
	for _, i := range settings.Inventories {
		drivers[i.Name] = i.Driver
	}
	handler := streams.New(streams.Options{
		Authorizer: rights, Cached: mgr.GetClient(), Live: mgr.GetAPIReader(), Drivers: drivers, Decisions: settings.Decisions.History,
		PerVM: o.Streams.PerVM, Total: o.Streams.Total, Clock: clock.RealClock{}, Log: ctrl.Log.WithName("streams"),
	})
	if o.Streams.Serve != nil {
		o.Streams.Serve(handler)
	}
	if err := mgr.Add(handler); err != nil || o.Streams.Address == "" {
		return err
	}
	return addEndpoint(ctx, mgr, o, handler, drivers)
}

func addEndpoint(ctx context.Context, mgr ctrl.Manager, o *Options, handler http.Handler, drivers map[string]driver.Driver) error {
	var served []string
	for name, d := range drivers {
		if _, ok := driver.As[driver.Consoler](d); ok {
			served = append(served, name)
		}
	}
	slices.Sort(served)
	parts, err := endpoint.New(ctx, endpoint.Options{
		Address: o.Streams.Address, CertDir: o.Streams.CertDir, URL: o.Streams.URL, Drivers: served,
		Streams: o.Streams.Total, StreamsPerVM: o.Streams.PerVM, Handler: handler, Config: mgr.GetConfig(), HTTPClient: mgr.GetHTTPClient(),
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, Log: ctrl.Log.WithName("streams"),
	})
	if err != nil {
		return err
	}
	for _, part := range parts {
		if err := mgr.Add(part); err != nil {
			return err
		}
	}
	return nil
}
