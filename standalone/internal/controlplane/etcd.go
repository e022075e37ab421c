// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcdQuota is the largest that etcd's documentation recommends.
const etcdQuota = 8 << 30

// slowRequest is the limit above which etcd's own program reports a request as slow;
// embedded, etcd would report every request.
const slowRequest = 300 * time.Millisecond

// etcdCloseTimeout is how long etcd may take to disconnect its clients before it closes
// its files regardless.
const etcdCloseTimeout = time.Second

type etcd struct {
	config *embed.Config
	client string
	ready  chan struct{}
}

// newEtcd prepares an etcd of one member that is not reachable from any network: it
// listens on sockets in a folder of mode 0700.
func (c *Config) newEtcd() (*etcd, error) {
	client, err := c.Dir.Socket("etcd.sock")
	if err != nil {
		return nil, err
	}
	peer, err := c.Dir.Socket("peer.sock")
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name = "drover"
	cfg.Dir = c.Dir.Etcd()
	setEtcdURLs(cfg, client, peer)
	cfg.QuotaBackendBytes = etcdQuota
	cfg.UnsafeNoFsync = c.UnsafeNoFsync
	cfg.EnableGRPCGateway = false
	cfg.WarningUnaryRequestDuration = slowRequest
	cfg.LogLevel = zapcore.WarnLevel.String()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(c.etcdLogger())
	return &etcd{config: cfg, client: client, ready: make(chan struct{})}, nil
}

// setEtcdURLs advertises addresses that are never used, because etcd requires a host
// and a port there, and listens on the sockets. The peer's path must be in Host: etcd
// would create an abstract socket for anything else, open to every user.
func setEtcdURLs(cfg *embed.Config, client, peer string) {
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "localhost:2379"}}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: client}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: peer}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
}

// etcdLogger writes to the common log. An error that etcd calls fatal, usually a full
// disk, ends the process with a line that says so.
func (c *Config) etcdLogger() *zap.Logger {
	encoder := zap.NewProductionEncoderConfig()
	encoder.EncodeTime = zapcore.ISO8601TimeEncoder
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(encoder), zapcore.AddSync(c.Log), zapcore.WarnLevel)
	return zap.New(core, zap.WithFatalHook(fatalHook{c.Fatal})).Named("etcd")
}

type fatalHook struct {
	fatal func(name string, err error)
}

// OnWrite is called after zap has written a fatal entry.
func (h fatalHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	h.fatal("etcd", err)
}

func (e *etcd) clientURL() string { return "unix://" + e.client }

func (e *etcd) run(ctx context.Context) error {
	server, err := embed.StartEtcd(e.config)
	if err != nil {
		return err
	}
	select {
	case <-server.Server.ReadyNotify():
		close(e.ready)
	case err := <-server.Err():
		return err
	case <-server.Server.StopNotify():
		return errors.New("etcd stopped while it started")
	case <-ctx.Done():
	}
	select {
	case err = <-server.Err():
	case <-server.Server.StopNotify():
		err = errors.New("etcd stopped")
	case <-ctx.Done():
	}
	closeEtcd(server)
	return err
}

// closeEtcd ends etcd cleanly. A client that keeps its streams open, as a kube-apiserver
// that was left behind does, must not prevent etcd from closing its log and its
// database.
func closeEtcd(server *embed.Etcd) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		server.Close()
	}()
	select {
	case <-closed:
		return
	case <-time.After(etcdCloseTimeout):
	}
	server.Server.HardStop()
}

// waitForEtcd returns a function that waits for etcd, and records that it came up before
// any client can write to it.
func (c *Config) waitForEtcd(e *etcd) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := e.waitUntilReady(ctx); err != nil {
			return err
		}
		return c.Dir.SetEtcdStarted()
	}
}

func (e *etcd) waitUntilReady(ctx context.Context) error {
	select {
	case <-e.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
