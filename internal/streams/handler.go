// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package streams serves the consoles, logs, commands and ports of servers below the path
// that package apis/streams describes.
//
// Start with serveRequest in handler.go, which takes a request through its steps. Each kind of
// stream has a separate file; session.go is the WebSocket that three of them use.
package streams

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/policy/decisions"
)

// Options are the settings of a Handler.
type Options struct {
	// Authorizer decides who may use which stream.
	Authorizer authorizer.Authorizer
	// Cached reads VirtualMachines from the cache, and Live from the API.
	Cached, Live client.Reader
	// Drivers are those that run here, by name.
	Drivers map[string]driver.Driver
	// Decisions returns what this replica has of a VirtualMachine's decisions.
	Decisions func(types.NamespacedName) decisions.History
	// PerVM and Total are how many streams may be open at a time. A user has a quarter of
	// Total and a namespace three quarters, and each at least PerVM.
	PerVM, Total int
	Clock        clock.WithTickerAndDelayedExecution
	Log          logr.Logger
}

// Handler serves streams between the begin and the end of Start. Whoever calls it has
// authenticated the user, and stored it in the request's context.
type Handler struct {
	Options
	times     times
	admission admission
}

// times are how long things may take.
type times struct {
	open time.Duration // the engine, to open a stream
	// The periods in which an open stream is checked: its VirtualMachine, and the user's
	// right. unanswered is how long a right counts that cannot be confirmed.
	check, recheck, unanswered time.Duration
	idle                       time.Duration // without a byte in either direction
	ping, silence              time.Duration // from ping to ping, and without any answer
	write                      time.Duration // one write to a client
	linger                     time.Duration // a client, to acknowledge the end
}

func defaultTimes() times {
	return times{
		open: 15 * time.Second, check: 10 * time.Second, recheck: 2 * time.Minute, unanswered: 10 * time.Minute,
		idle: 4 * time.Hour, ping: 15 * time.Second, silence: 45 * time.Second, write: 30 * time.Second, linger: 2 * time.Second,
	}
}

// New returns a Handler.
func New(o Options) *Handler {
	return &Handler{Options: o, times: defaultTimes(), admission: newAdmission(o.PerVM, o.Total)}
}

// Start lets streams begin until ctx ends. That ends all streams, and Start waits for them.
func (h *Handler) Start(ctx context.Context) error {
	h.admission.open(ctx)
	<-ctx.Done()
	h.admission.awaitStreams()
	return nil
}

// NeedLeaderElection returns false: every replica serves the engines that it reaches, since
// streams change nothing that only a leader may change.
func (h *Handler) NeedLeaderElection() bool { return false }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{Handler: h, w: w, r: r}
	err := c.serveRequest(r.Context())
	switch {
	case err == nil, c.hijacked, errors.Is(err, errClientLeft):
	case c.answered: // the client must not take a part of the response for all of it
		panic(http.ErrAbortHandler)
	default:
		Refuse(w, err)
	}
}

// call is one request for a stream, until the stream ends.
type call struct {
	*Handler
	w http.ResponseWriter
	r *http.Request

	user            user.Info
	namespace, name string
	stream          streams.Stream
	vm              *api.VirtualMachine
	driver          driver.Driver
	began           time.Time
	authorized      time.Time // when that was last confirmed

	ctx context.Context // ends with the stream
	end context.CancelCauseFunc

	answered, hijacked bool
	in, out, last      atomic.Int64 // bytes, and the time of the last in Unix seconds
}

// serveRequest takes the request through its steps. What a user may not use looks the same to them
// whether it exists or not, so the look-up comes after the authorization.
func (c *call) serveRequest(ctx context.Context) error {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return errNoUser
	}
	c.user = who
	if c.r.URL.Path == streams.ServersPath {
		return c.serveServers(ctx)
	}
	serve, err := c.parsePath()
	if err != nil {
		return err
	}
	if err := c.authorizeUser(ctx); err != nil {
		return err
	}
	if c.stream == streams.Decisions {
		return c.serveDecisions(ctx)
	}
	if err := c.findVM(ctx); err != nil {
		return err
	}
	ctx, leave, err := c.beginStream(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := c.findDriver(ctx); err != nil {
		return err
	}
	err = c.finishStream(serve(c))
	c.logStream(err)
	return err
}

// beginStream counts the stream and gives it its context, until leave is called.
func (c *call) beginStream(ctx context.Context) (streamContext context.Context, leave func(), err error) {
	lifetime, exit, err := c.admission.admitStream(c.vm.UID, c.namespace, c.user.GetName())
	if err != nil {
		return nil, nil, err
	}
	c.ctx, c.end = context.WithCancelCause(ctx)
	stop := context.AfterFunc(lifetime, func() { c.end(errStopping) })
	c.began = c.Clock.Now()
	c.recordTraffic()
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		c.watchAuthorization()
	}()
	return c.ctx, func() {
		stop()
		c.end(nil)
		<-watching
		exit()
	}, nil
}

// finishStream ends the stream with err, unless it has ended before, and returns how it ended.
func (c *call) finishStream(err error) error {
	if err == nil {
		err = errFinished
	}
	c.end(err)
	switch cause := context.Cause(c.ctx); {
	case errors.Is(cause, errFinished):
		return nil
	case !errors.Is(cause, context.Canceled):
		return cause
	case errors.Is(err, errTooSlow): // a write that fails ends the context of the request
		return err
	}
	return errClientLeft
}

// recordTraffic records that there was traffic.
func (c *call) recordTraffic() { c.last.Store(c.Clock.Now().Unix()) }

// logStream logs a stream that was open. It never logs what was transferred.
func (c *call) logStream(end error) {
	if !c.answered {
		return
	}
	var uid types.UID // the list of all servers is of no VirtualMachine
	if c.vm != nil {
		uid = c.vm.UID
	}
	c.Log.Info("Stream ended", "user", c.user.GetName(), "namespace", c.namespace, "name", c.name, "uid", uid,
		"stream", c.stream, "duration", c.Clock.Since(c.began), "bytesIn", c.in.Load(), "bytesOut", c.out.Load(), "end", describeEnd(end))
}
