// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package streams serves the consoles, logs, commands and ports of servers below the path
// that package apis/streams describes.
//
// Start with serveRequest in handler.go, which calls the steps of a request in order. Each kind of
// stream has a separate file. session.go has the WebSocket that several kinds use.
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
	// Drivers are the drivers that run here, keyed by name.
	Drivers map[string]driver.Driver
	// Decisions returns the decisions about a VirtualMachine that this replica has recorded.
	Decisions func(types.NamespacedName) decisions.History
	// PerVM and Total limit how many streams are open at a time: for one VirtualMachine, and in all. One
	// user may have a quarter of Total, and one namespace three quarters. Both may have at least PerVM.
	PerVM, Total int
	Clock        clock.WithTickerAndDelayedExecution
	Log          logr.Logger
}

// Handler serves streams while Start runs. Its caller must authenticate the user and store the
// user in the request's context.
type Handler struct {
	Options
	times     times
	admission admission
}

// times are the limits and periods of a stream.
type times struct {
	open time.Duration // the engine may take this long to open a stream
	// check is the period between two checks of an open stream and its VirtualMachine, recheck that
	// of the user's right. A right that cannot be confirmed still counts for unanswered.
	check, recheck, unanswered time.Duration
	idle                       time.Duration // a stream may stay open this long without traffic
	ping, silence              time.Duration // the period between two pings, and how long a client need not answer
	write                      time.Duration // one write to a client may take this long
	linger                     time.Duration // a client may take this long to acknowledge the end
}

func defaultTimes() times {
	return times{
		open: 15 * time.Second, check: 10 * time.Second, recheck: time.Minute, unanswered: 10 * time.Minute,
		idle: 4 * time.Hour, ping: 15 * time.Second, silence: 45 * time.Second, write: 30 * time.Second, linger: 2 * time.Second,
	}
}

// New returns a Handler.
func New(o Options) *Handler {
	return &Handler{Options: o, times: defaultTimes(), admission: newAdmission(o.PerVM, o.Total)}
}

// Start lets streams begin until ctx ends. It returns when all streams have ended, as they do with ctx.
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
	case c.answered: // without an abort, the client would take a part of the response for all of it
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
	authorized      time.Time // when the user's right was last confirmed

	ctx context.Context // ends with the stream
	end context.CancelCauseFunc

	answered, hijacked bool
	in, out, last      atomic.Int64 // the bytes received and sent, and the time of the last one in Unix seconds
}

// serveRequest calls the steps of the request in order. It authorizes the user before it looks for the
// VirtualMachine, so that a user without the right does not learn whether the VirtualMachine exists.
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

// beginStream counts the stream, creates its context, and checks the stream periodically, until leave is called.
func (c *call) beginStream(ctx context.Context) (streamContext context.Context, leave func(), err error) {
	lifetime, exit, err := c.admission.admitStream(c.vm.UID, c.namespace, c.user.GetName())
	if err != nil {
		return nil, nil, err
	}
	c.ctx, c.end = context.WithCancelCause(ctx)
	stop := context.AfterFunc(lifetime, func() { c.end(errStopping) })
	c.began = c.Clock.Now()
	c.recordTraffic()
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		c.checkPeriodically()
	}()
	return c.ctx, func() {
		stop()
		c.end(nil)
		<-checked
		exit()
	}, nil
}

// finishStream ends the stream with err, unless the stream has ended before. It returns the error with
// which the stream ended, or nil if the stream is complete.
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
	case errors.Is(err, errTooSlow): // the failed write has canceled the context of the request
		return err
	}
	return errClientLeft
}

// recordTraffic restarts the time after which the stream counts as idle.
func (c *call) recordTraffic() { c.last.Store(c.Clock.Now().Unix()) }

// logStream logs that an opened stream has ended. It never logs transferred data.
func (c *call) logStream(end error) {
	if !c.answered {
		return
	}
	var uid types.UID // stays empty for the list of all servers
	if c.vm != nil {
		uid = c.vm.UID
	}
	c.Log.Info("Stream ended", "user", c.user.GetName(), "namespace", c.namespace, "name", c.name, "uid", uid,
		"stream", c.stream, "duration", c.Clock.Since(c.began), "bytesIn", c.in.Load(), "bytesOut", c.out.Load(), "end", describeEnd(end))
}
