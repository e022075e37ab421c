// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/crash"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework"
)

// SecondServer are faults of a controller whose API server lags behind the one that others
// use, since its watches in etcd stand still. The leader uses the first API server and is
// killed at an event. Who goes on uses the second, which stands still since the begin of the
// workload.
var SecondServer crash.Source = secondFaults{Faults{
	byName:     map[string]func() fault{"stalled": nil, "stalled, lists": nil}, // made in a wave
	recoveries: []lab.Recovery{lab.ByRestart, lab.ByStandby},
	isWanted:   func(event string) bool { return strings.Contains(event, " virtualmachines ") },
	ofLeader:   true,
}}

// secondFaults runs the cases of its faults in waves. In each wave the second API server is halted once.
type secondFaults struct{ Faults }

// Inject implements crash.Source.
func (f secondFaults) Inject(ctx context.Context, l *lab.Lab, parallel int, cases []crash.Case, run crash.Run) error {
	server, err := startSecondServer(ctx, l)
	if err != nil {
		return err
	}
	for some := range slices.Chunk(cases, lab.Parallel(parallel)) {
		if err = f.runWave(ctx, server, some, run); err != nil {
			break
		}
	}
	return errors.Join(err, server.close())
}

// secondServer is an API server whose link to etcd can stand still.
type secondServer struct {
	*framework.APIServer
	host string
	link *etcdLink
	dir  string
}

func startSecondServer(ctx context.Context, l *lab.Lab) (_ *secondServer, err error) {
	s := &secondServer{}
	if s.dir, err = os.MkdirTemp("", "drover-as-"); err != nil { // short, as sockets need
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	socket, program := filepath.Join(s.dir, "etcd.sock"), filepath.Join(s.dir, "kube-apiserver")
	if err := framework.BuildAPIServer(program); err != nil {
		return nil, err
	}
	if s.link, err = openEtcdLink(socket, l.EtcdSocket()); err != nil {
		return nil, err
	}
	if s.APIServer, err = l.StartAPIServer(program, socket); err != nil {
		return nil, err
	}
	at, err := url.Parse(s.Config.Host)
	if err != nil {
		return nil, err
	}
	s.host = at.Host
	return s, s.awaitVMs(ctx)
}

// awaitVMs waits until VirtualMachines are served from a cache.
func (s *secondServer) awaitVMs(ctx context.Context) error {
	client, err := versioned.NewForConfig(s.Config)
	if err != nil {
		return err
	}
	return assert.Poll(ctx, "the second API server serves", func() error {
		_, err := client.CloudnativeV1alpha1().VirtualMachines("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err
	})
}

func (s *secondServer) close() error {
	var err error
	if s.link != nil {
		err = s.link.Close()
	}
	if s.APIServer != nil {
		err = errors.Join(err, s.Kill())
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// wave is cases that run at a time. The second API server stands still from when all have
// begun until it has shown the past to all.
type wave struct {
	server          *secondServer
	prepared, shown sync.WaitGroup
	stalled         chan struct{}
}

// runWave runs cases.
func (f secondFaults) runWave(ctx context.Context, server *secondServer, cases []crash.Case, run crash.Run) error {
	w := &wave{server: server, stalled: make(chan struct{})}
	w.prepared.Add(len(cases))
	w.shown.Add(len(cases))
	var over sync.WaitGroup
	over.Go(func() {
		w.prepared.Wait()
		server.link.stalled.Lock()
		close(w.stalled)
		w.shown.Wait()
		server.link.stalled.Unlock()
	})
	defer over.Wait()
	return lab.ForEach(ctx, len(cases), cases, func(ctx context.Context, c crash.Case) error {
		event, name := c.Fault()
		past := newServedPast(w, name == "stalled, lists")
		defer past.leave()
		return run(ctx, c, func() crash.Injector { return f.newInjector(c.Recovery, event, past) })
	})
}

// servedPast is the fault of one case of a wave.
type servedPast struct {
	noFault
	wave *wave
	// lists is set for a second API server without the feature gate WatchList.
	lists bool
	// prepared and shown are called once the case has begun, and is over.
	prepared, shown func()
	// lead is called when another process than the first leads, which closes leading.
	lead    func()
	leading chan struct{}
}

func newServedPast(w *wave, lists bool) *servedPast {
	leading := make(chan struct{})
	return &servedPast{
		wave: w, lists: lists, leading: leading, lead: sync.OnceFunc(func() { close(leading) }),
		prepared: sync.OnceFunc(w.prepared.Done), shown: sync.OnceFunc(w.shown.Done),
	}
}

// leave lets the others of the wave go on without this case.
func (f *servedPast) leave() {
	f.prepared()
	f.shown()
}

func (f *servedPast) begin() {
	f.prepared()
	<-f.wave.stalled
}

// occur ends the leader, and waits until who goes on has led for a while.
func (f *servedPast) occur(s *stream, e event) error {
	defer f.leave()
	s.injector.killLeader()
	_ = s.deliver(e)
	select {
	case <-f.leading:
		time.Sleep(lateness)
	case <-time.After(faultTime):
	}
	return errCut
}

// roundTrip implements fault. The first process uses the first API server.
func (f *servedPast) roundTrip(process int, req *http.Request, next http.RoundTripper) (*http.Response, error) {
	if process == 0 {
		return next.RoundTrip(req)
	}
	if f.lists && req.URL.Query().Has("sendInitialEvents") {
		return refuseInitialEvents(req)
	}
	if req.Method != http.MethodGet && strings.Contains(req.URL.Path, "/leases") {
		f.lead()
	}
	req.URL.Host = f.wave.server.host
	return next.RoundTrip(req)
}
