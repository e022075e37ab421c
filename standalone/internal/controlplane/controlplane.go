// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs etcd, kube-apiserver and the few controllers of
// kube-controller-manager that Drover's users rely on, inside this process.
//
// Start with Config and its method Components, which lists the components in the order in
// which they start. Each component has a separate file.
package controlplane

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/kubeconfig"
	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/standalone/internal/storekeeper"
	"cloudnative.tw/drover/standalone/internal/storequota"
	"cloudnative.tw/drover/standalone/internal/supervisor"
)

// Config configures the control plane.
type Config struct {
	Dir  *datadir.Dir
	Keys *pki.Store
	// Listener is the listener of kube-apiserver. The caller opens it before anything
	// else, so that a port in use is detected first.
	Listener net.Listener
	// Log receives etcd's log.
	Log io.Writer
	// Fatal ends the process after the failure of a component that cannot be started again.
	Fatal func(name string, err error)
	// StoreQuota is the largest size of all objects together, in bytes.
	StoreQuota int64
	// UnsafeNoFsync makes etcd faster, but it loses data if the host crashes.
	UnsafeNoFsync bool
	// AllAPIs also serves the APIs about pods on nodes, although nothing acts on their objects.
	AllAPIs bool
	// Streams, if not nil, serves streams to users that kube-apiserver has authenticated.
	Streams http.Handler

	accounts *storequota.Accounts
	usage    storekeeper.Latest
	// unready says why the starting component is not ready yet.
	unready atomic.Pointer[error]
}

// ServiceIP is the first address of kube-apiserver's range of service IPs. No
// service answers there: Drover does not run a network for Services.
var ServiceIP = net.IPv4(10, 0, 0, 1)

// startTimeout is how long each component may take to become ready. On a slow and busy host
// it needs minutes of CPU time. The other constants count from the begin of a stop, which may take
// 10 s: the stop no longer waits for a component after them.
const (
	startTimeout                 = 10 * time.Minute
	etcdStopTimeout              = 9500 * time.Millisecond
	apiServerStopTimeout         = 8 * time.Second
	presetStopTimeout            = 7 * time.Second // for the roles and policies beside the VirtualMachine API
	controllerManagerStopTimeout = 6500 * time.Millisecond
)

// Components returns the components of the control plane in the order in which they start.
func (c *Config) Components() ([]supervisor.Component, error) {
	c.accounts = storequota.NewAccounts(c.StoreQuota, c.Keys.Clock)
	etcd, err := c.newEtcd()
	if err != nil {
		return nil, err
	}
	parts := []supervisor.Component{
		{Name: "etcd", Run: etcd.run, Ready: c.waitForEtcd(etcd), Within: startTimeout, StopBy: etcdStopTimeout},
		{Name: "kube-apiserver", Run: c.runAPIServer(etcd.clientURL()), Ready: c.waitForAPI, Cause: c.unreadyCause, Within: startTimeout, StopBy: apiServerStopTimeout},
		{Name: "VirtualMachine API", Run: c.keepPresets, Ready: c.installAPI, Cause: c.unreadyCause, Within: startTimeout, StopBy: presetStopTimeout},
		{Name: "kube-controller-manager", Run: c.runControllerManager, StopBy: controllerManagerStopTimeout},
	}
	if c.Streams != nil {
		parts = append(parts, supervisor.Component{Name: "streams", Ready: c.installStreams, Cause: c.unreadyCause, Within: startTimeout})
	}
	return parts, nil
}

// ClientConfig returns a client configuration for kube-apiserver, for the user whose
// certificate is in the file. Clients read the file again when the certificate is renewed.
func (c *Config) ClientConfig(certFile string) *rest.Config {
	return &rest.Config{
		Host: c.URL(),
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: c.Keys.CABundle(), CertFile: certFile, KeyFile: certFile,
		},
	}
}

// WriteKubeconfig writes the kubeconfig for people.
func (c *Config) WriteKubeconfig() error {
	return kubeconfig.WriteForPeople(c.Dir.Kubeconfig(), c.URL(), c.Keys.CABundle(), c.Keys.Admin())
}

// URL returns the address at which this host reaches kube-apiserver.
func (c *Config) URL() string {
	return URL(c.Listener.Addr())
}

// URL returns the address at which this host reaches a server that listens on addr.
func URL(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return "https://" + addr.String()
	}
	host := *tcp
	if host.IP.IsUnspecified() {
		host.IP = net.IPv4(127, 0, 0, 1)
	}
	return "https://" + host.String()
}

// unreadyCause returns the last error of a check that has not succeeded yet.
func (c *Config) unreadyCause() error {
	if err := c.unready.Load(); err != nil {
		return *err
	}
	return nil
}

// waitFor repeats check until it succeeds or ctx ends. When ctx ends, it returns the last
// error of check.
func (c *Config) waitFor(ctx context.Context, check func(context.Context) error) error {
	ticker := time.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			c.unready.Store(nil)
			return nil
		}
		c.unready.Store(&err)
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

const pollPeriod = 50 * time.Millisecond
