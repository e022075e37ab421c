// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"context"
	"errors"
	"maps"
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
var SecondServer = Faults{
	byName: map[string]func() fault{
		"stalled":        nil, // made in a wave
		"stalled, lists": nil,
	},
	recoveries: []lab.Recovery{lab.ByRestart, lab.ByStandby},
	isWanted:   func(event string) bool { return strings.Contains(event, " virtualmachines ") },
	ofLeader:   true,
}

// SecondServerKind returns the kind of fault with these Faults. Its cases run in waves, in each
// of which the second API server stands still once.
func SecondServerKind(s Settings) lab.Kind {
	s.Faults = SecondServer
	return lab.Kind{
		Name: s.Name, Sizes: slices.Collect(maps.Keys(s.Bounds)),
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			return withSecondServer(ctx, newExplorer(s, l, s.Bounds[size]), func(e *explorer) (lab.Result, error) { return e.explore(ctx) })
		},
		Replay: func(ctx context.Context, l *lab.Lab, name string) (lab.Result, error) {
			return withSecondServer(ctx, newExplorer(s, l, crash.Bounds{}), func(e *explorer) (lab.Result, error) { return e.replay(ctx, name) })
		},
	}
}

// withSecondServer calls do with an explorer that has a second API server.
func withSecondServer(ctx context.Context, e *explorer, do func(*explorer) (lab.Result, error)) (lab.Result, error) {
	server, err := startSecondServer(ctx, e.lab)
	if err != nil {
		return lab.Result{}, err
	}
	e.runCases = func(ctx context.Context, cases []testCase) error {
		for some := range slices.Chunk(cases, lab.Parallel(e.Parallel)) {
			if err := e.runWave(ctx, server, some); err != nil {
				return err
			}
		}
		return nil
	}
	r, err := do(e)
	return r, errors.Join(err, server.close())
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
func (e *explorer) runWave(ctx context.Context, server *secondServer, cases []testCase) error {
	w := &wave{server: server, stalled: make(chan struct{})}
	w.prepared.Add(len(cases))
	w.shown.Add(len(cases))
	var over sync.WaitGroup
	over.Go(func() {
		w.prepared.Wait()
		server.link.halt()
		close(w.stalled)
		w.shown.Wait()
		server.link.resume()
	})
	defer over.Wait()
	return lab.ForEach(ctx, len(cases), cases, func(ctx context.Context, c testCase) error {
		f := newServedPast(w, c.fault == "stalled, lists")
		defer f.leave()
		_, err := e.tryCase(ctx, c, f)
		return err
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
