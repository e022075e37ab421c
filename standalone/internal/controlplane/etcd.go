// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"

	"cloudnative.tw/drover/standalone/internal/storekeeper"
)

// raftEntries is how many Raft entries etcd keeps in memory, and snapshotEntries how many it
// writes before it removes the oldest files of its log. An entry may have 1.5 MB. The defaults
// of 5,000 and 10,000 help members that fall behind, but this etcd has only one member.
const (
	raftEntries     = 100
	snapshotEntries = 1000
)

// slowRequest is the duration above which etcd logs a request as slow. It is the default of the
// program etcd. An embedded etcd would otherwise log every request.
const slowRequest = 300 * time.Millisecond

// etcdCloseTimeout is how long etcd may take to disconnect its clients. After that it closes
// its files anyway.
const etcdCloseTimeout = time.Second

type etcd struct {
	config *embed.Config
	client string
	ready  chan struct{}
	// keeper keeps the store. Its field Server is set when etcd runs.
	keeper storekeeper.Keeper
}

// newEtcd prepares an etcd of one member. No network can reach it, since it listens on sockets in a
// folder of mode 0700.
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
	cfg.QuotaBackendBytes = fileLimit(c.StoreQuota, filepath.Join(cfg.Dir, "member", "snap", "db"))
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotEntries, raftEntries
	cfg.UnsafeNoFsync = c.UnsafeNoFsync
	cfg.EnableGRPCGateway = false
	cfg.WarningUnaryRequestDuration = slowRequest
	cfg.LogLevel = zapcore.WarnLevel.String()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(c.etcdLogger())
	return &etcd{config: cfg, client: client, ready: make(chan struct{}), keeper: storekeeper.Keeper{
		Accounts: c.accounts, FileLimit: cfg.QuotaBackendBytes, Publish: c.usage.Set, Clock: c.Keys.Clock, Log: klog.Background(),
	}}, nil
}

// fileLimit returns the size of etcd's file at which etcd refuses all writes. This must not happen in
// normal operation, since etcd then also refuses Drover's writes. So the limit leaves enough space for
// history and free pages in addition to the objects, and for growth of the existing file.
func fileLimit(quota int64, path string) int64 {
	limit := 3 * quota
	if info, err := os.Stat(path); err == nil {
		limit = max(limit, info.Size()/4*5+quota)
	}
	return limit
}

// setEtcdURLs makes etcd listen on the sockets. The advertised addresses are never used, but etcd
// requires a host and a port. The path of the peer socket must be in Host: otherwise etcd would
// create an abstract socket, which is open to every user.
func setEtcdURLs(cfg *embed.Config, client, peer string) {
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: "localhost:2379"}}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:2380"}}
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: client}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: peer}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
}

// etcdLogger returns a logger that writes to Drover's log. After an error that is fatal to etcd,
// usually a full disk, it calls c.Fatal.
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
	defer closeEtcd(server)
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return err
	case <-server.Server.StopNotify():
		return errors.New("etcd stopped while it started")
	case <-ctx.Done():
		return nil
	}
	e.keeper.Server = server.Server
	e.keeper.Prepare(ctx)
	close(e.ready)
	defer e.startKeeper(ctx)()
	select {
	case err = <-server.Err():
	case <-server.Server.StopNotify():
		err = errors.New("etcd stopped")
	case <-ctx.Done():
	}
	return err
}

// startKeeper runs the keeper of the store until stop is called.
func (e *etcd) startKeeper(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.keeper.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// closeEtcd ends etcd cleanly. A client that keeps its streams open, such as a kube-apiserver that was
// left behind, must not prevent etcd from closing its log and its database.
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

// waitForEtcd returns a function that waits for etcd, and records that etcd has started before any
// client can write to it.
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
