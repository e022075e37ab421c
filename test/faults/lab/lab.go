// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab runs controllers among faults: it has one kube-apiserver for many worlds,
// each of which looks like a cluster to the controllers in it.
//
// Start with Lab in lab.go and World in world.go. proxy.go makes a namespace look like a
// cluster; engine.go describes engines, and each has a file; oracle.go finds the rules that
// were broken; kind.go has the output of make faults.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"cloudnative.tw/drover/test/framework"
)

// Lab is a kube-apiserver and the program under test.
type Lab struct {
	*framework.Environment
	// Program is a drover-controller with crash points.
	Program string
	// PolicyDiffers is set if the policy of Program differs from the policy in these tests, so
	// that its decisions cannot be derived again.
	PolicyDiffers bool
	// Variables are further environment variables of the controllers, as name=value.
	Variables []string

	// replayed counts decisions that were derived again.
	replayed *atomic.Int64
	// slowestDeletion is the longest time, in nanoseconds, that WaitGone has waited for the end of a
	// deletion.
	slowestDeletion *atomic.Int64
	*shared
}

// shared has the parts that a Lab and those made by With share.
type shared struct {
	dir      string
	listener net.Listener
	server   *http.Server
	worlds   worldsByName
	count    atomic.Int64
}

// With returns a lab with separate counts that shares the rest. Its controllers have further
// variables, as name=value. It need not be closed.
func (l *Lab) With(variables ...string) *Lab {
	with := *l
	with.replayed, with.slowestDeletion = new(atomic.Int64), new(atomic.Int64)
	with.Variables = append(slices.Clone(l.Variables), variables...)
	return &with
}

// SlowestDeletion returns the longest time that WaitGone has waited for a deletion, including the time
// in which faults occurred.
func (l *Lab) SlowestDeletion() time.Duration { return time.Duration(l.slowestDeletion.Load()) }

// addDeletion updates slowestDeletion.
func (l *Lab) addDeletion(took time.Duration) {
	for {
		slowest := l.slowestDeletion.Load()
		if slowest >= int64(took) || l.slowestDeletion.CompareAndSwap(slowest, int64(took)) {
			return
		}
	}
}

// Open starts a lab. clusterFlags are further flags of its cluster. The caller must Close it.
func Open(program string, clusterFlags ...string) (*Lab, error) {
	l := &Lab{Program: program, replayed: new(atomic.Int64), slowestDeletion: new(atomic.Int64), shared: &shared{}}
	var err error
	if l.Environment, err = framework.NewEnvironment(framework.ClusterOptions{Args: clusterFlags}); err != nil {
		return nil, err
	}
	if err := l.open(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) open() (err error) {
	if l.dir, err = os.MkdirTemp("", "drover-fl-"); err != nil { // short, because it has sockets
		return err
	}
	if err := os.Chmod(l.dir, 0o711); err != nil { // for the user of machines
		return err
	}
	handler, err := newProxy(l.Config, &l.worlds)
	if err != nil {
		return err
	}
	if l.listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	if _, err := framework.WriteServerCertificate(l.certificates()); err != nil { // without TLS clients do not send their token
		return err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // so that a cut connection ends only one request
	l.server = &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, Protocols: protocols, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		_ = l.server.ServeTLS(l.listener, filepath.Join(l.certificates(), "tls.crt"), filepath.Join(l.certificates(), "tls.key"))
	}()
	return nil
}

// Close stops the API server and removes all files.
func (l *Lab) Close() error {
	var err error
	if l.server != nil {
		err = l.server.Close()
	}
	return errors.Join(err, l.Cluster.Close(), os.RemoveAll(l.dir))
}

// CloseIdle closes the idle connections of controllers, so that a test can count their
// descriptors.
func (l *Lab) CloseIdle() {
	l.server.SetKeepAlivesEnabled(false)
	l.server.SetKeepAlivesEnabled(true)
}

func (l *Lab) certificates() string { return filepath.Join(l.dir, "certificates") }

// labDir is the folder of all worlds.
func (l *Lab) labDir() string { return l.dir }

// kubeconfigFor writes the kubeconfig of a process of a world, which sends its requests
// to the proxy.
func (l *Lab) kubeconfigFor(w *World, process int) (string, error) {
	path := filepath.Join(w.Dir, fmt.Sprintf("kubeconfig-%d", process))
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: world, cluster: {server: "https://%s/%s/%d", certificate-authority: "%s/ca.crt"}}]
users: [{name: controller, user: {token: %s}}]
contexts: [{name: world, context: {cluster: world, user: controller}}]
current-context: world
`, l.listener.Addr(), w.Name, process, l.certificates(), token)
	return path, os.WriteFile(path, []byte(content), 0o600)
}
