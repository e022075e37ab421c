// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fencing"
	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// fixture is a Handler with a driver in memory, for VirtualMachine demo/vm.
type fixture struct {
	*Handler
	server  *httptest.Server
	driver  *stub
	console *echoConsole // the driver's, unless a test sets another
	objects client.Client
	rules   *rules
	log     *lines
	stop    func()
	// withdrawn ends the identity of users, and with broken every write to a client fails.
	withdrawn, broken atomic.Bool
	// deadlines counts how often a deadline to read from a client was set.
	deadlines atomic.Int64
}

// newFixture starts a Handler. change may change its settings before.
func newFixture(t testing.TB, change func(*Handler)) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	assert.NoError(t, errors.Join(api.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	vm := framework.NewVM("vm").Namespace("demo").UID("uid-1").Bound("stub/engine-1").Obj()
	f := &fixture{
		objects: clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(vm).Build(),
		driver:  &stub{}, console: &echoConsole{}, rules: &rules{allowed: map[string]bool{"alice": true, "bob": true, robot: true}}, log: &lines{},
	}
	f.driver.console = f.console.open
	f.Handler = New(Options{
		Authorizer: f.rules, Cached: f.objects, Live: f.objects, Clock: clock.RealClock{},
		Drivers: map[string]driver.Driver{"stub": fencing.Wrap("stub", f.driver, nil, logr.Discard(), nil), "bare": bare{id: "engine-1"}},
		PerVM:   4, Total: 8, Log: funcr.New(f.log.add, funcr.Options{}),
	})
	if change != nil {
		change(f.Handler)
	}
	f.serve(t)
	return f
}

func (f *fixture) serve(t testing.TB) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	f.stop = sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	f.server = httptest.NewUnstartedServer(f.asUser(f.Handler))
	f.server.Listener = &listener{f.server.Listener, f}
	f.server.Start()
	t.Cleanup(func() {
		f.stop()
		f.server.Close()
	})
	assert.Eventually(t, "the handler starts", func(testing.TB) error {
		f.admission.mu.Lock()
		defer f.admission.mu.Unlock()
		return assert.ErrorUnless(f.admission.lifetime != nil, "it has not")
	})
}

// waitForOpen waits until so many streams are open.
func (f *fixture) waitForOpen(t *testing.T, n int) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("%d streams are open", n), func(testing.TB) error {
		f.admission.mu.Lock()
		defer f.admission.mu.Unlock()
		return assert.ErrorUnless(f.admission.total == n, "%d are open", f.admission.total)
	})
}

// listener accepts connections whose writes fail once broken is set, while reads go on.
type listener struct {
	net.Listener
	fixture *fixture
}

func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &breakable{conn, l.fixture}, err
}

type breakable struct {
	net.Conn
	fixture *fixture
}

func (b *breakable) SetReadDeadline(deadline time.Time) error {
	b.fixture.deadlines.Add(1)
	return b.Conn.SetReadDeadline(deadline)
}

func (b *breakable) Write(p []byte) (int, error) {
	if b.fixture.broken.Load() {
		return 0, syscall.ENOBUFS
	}
	return b.Conn.Write(p)
}

// robot is the name of ServiceAccount demo/robot as a user.
const robot = "system:serviceaccount:demo:robot"

// asUser takes the bearer token for the name of the user.
func (f *fixture) asUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
			who := &user.DefaultInfo{Name: name}
			if name == robot {
				who.UID = "uid-of-robot"
			}
			ctx := request.WithUser(r.Context(), who)
			r = r.WithContext(WithIdentity(ctx, func() bool { return !f.withdrawn.Load() }))
		}
		next.ServeHTTP(w, r)
	})
}

// url returns the URL of a stream of demo/vm, or of the VM of that name.
func (f *fixture) url(s streams.Stream, query string, name ...string) string {
	return f.server.URL + streams.Path("demo", append(name, "vm")[0], s) + "?" + query
}

// connect runs a stream with the client of kubectl.
func (f *fixture) connect(ctx context.Context, who, url string, o remotecommand.StreamOptions) error {
	e, err := remotecommand.NewWebSocketExecutor(&rest.Config{Host: f.server.URL, BearerToken: who}, http.MethodGet, url)
	if err != nil {
		return err
	}
	return e.StreamWithContext(ctx, o)
}

// dial opens a bare WebSocket.
func (f *fixture) dial(t *testing.T, who, url string) *websocket.Conn {
	t.Helper()
	ws, response, err := f.tryDial(who, url, streams.Protocol)
	assert.NoError(t, err)
	_ = response.Body.Close()
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

func (f *fixture) tryDial(who, url string, protocols ...string) (*websocket.Conn, *http.Response, error) {
	dialer := websocket.Dialer{Subprotocols: protocols}
	return dialer.Dial(strings.Replace(url, "http", "ws", 1), http.Header{"Authorization": {"Bearer " + who}})
}

// request sends a plain request as alice.
func (f *fixture) request(t *testing.T, url string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	assert.NoError(t, err)
	r.Header.Set("Authorization", "Bearer alice")
	response, err := f.server.Client().Do(r)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// waitForEnds waits until that many streams have ended, and returns the log of the last.
func (f *fixture) waitForEnds(t *testing.T, count int) string {
	t.Helper()
	assert.Eventually(t, "the streams end", func(testing.TB) error {
		have := len(f.log.ends())
		return assert.ErrorUnless(have >= count, "%d of %d have", have, count)
	})
	return f.log.ends()[count-1]
}

// wantEnd waits until a stream has ended, and requires some texts in its log, which it returns.
func (f *fixture) wantEnd(t *testing.T, texts ...string) string {
	t.Helper()
	line := f.waitForEnds(t, 1)
	for _, want := range texts {
		assert.Contains(t, "the log lacks "+want, line, want)
	}
	return line
}

// rules allow named users everything.
type rules struct {
	mu      sync.Mutex
	allowed map[string]bool
	err     error
	last    authorizer.Attributes
}

func (r *rules) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = a
	if r.allowed[a.GetUser().GetName()] && r.err == nil {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", r.err
}

func (r *rules) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// lines has the lines of a log.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) add(_, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, args)
}

// ends are the lines about streams that have ended.
func (l *lines) ends() []string {
	return slices.DeleteFunc(l.get(), func(line string) bool { return !strings.Contains(line, "Stream ended") })
}

func (l *lines) get() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.text...)
}

// bare is a driver without streams.
type bare struct {
	driver.Driver
	id string
}

func (b bare) EngineID(context.Context) (string, error) { return b.id, nil }

func (b bare) List(context.Context, ...types.UID) ([]driver.Server, error) {
	return nil, fmt.Errorf("%w: away", driver.ErrUnavailable)
}

// stub is a driver whose streams a test sets.
type stub struct {
	driver.Driver
	engineErr  error
	console    func(context.Context) (io.ReadWriteCloser, error)
	exec       func(context.Context, terminal.Command) (int, error)
	dial       func(context.Context, int32) (net.Conn, error)
	logs       func(context.Context, driver.LogOptions) (io.ReadCloser, error)
	interfaces func(context.Context) ([]report.Interface, error)
	statistics func(context.Context) (report.NetworkStatistics, error)
	servers    []driver.Server
}

func (s *stub) List(context.Context, ...types.UID) ([]driver.Server, error) { return s.servers, nil }

func (s *stub) EngineID(context.Context) (string, error) { return "engine-1", s.engineErr }

func (s *stub) Console(ctx context.Context, _ types.UID) (io.ReadWriteCloser, error) {
	return s.console(ctx)
}

func (s *stub) Exec(ctx context.Context, _ types.UID, r terminal.Command) (int, error) {
	return s.exec(ctx, r)
}

func (s *stub) Dial(ctx context.Context, _ types.UID, port int32) (net.Conn, error) {
	return s.dial(ctx, port)
}

func (s *stub) Logs(ctx context.Context, _ types.UID, o driver.LogOptions) (io.ReadCloser, error) {
	return s.logs(ctx, o)
}

func (s *stub) Interfaces(ctx context.Context, _ types.UID) ([]report.Interface, error) {
	return s.interfaces(ctx)
}

func (s *stub) NetworkStatistics(ctx context.Context, _ types.UID) (report.NetworkStatistics, error) {
	return s.statistics(ctx)
}

// echoConsole is a console of which every caller reads what one of them writes. The first
// to write keeps the right.
type echoConsole struct {
	mu     sync.Mutex
	writer *echoCaller
	all    []*echoCaller
	closed int
}

type echoCaller struct {
	console *echoConsole
	*io.PipeReader
	output *io.PipeWriter
	closed bool
}

func (e *echoConsole) open(context.Context) (io.ReadWriteCloser, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := &echoCaller{console: e}
	c.PipeReader, c.output = io.Pipe()
	e.all = append(e.all, c)
	return c, nil
}

func (c *echoCaller) Write(p []byte) (int, error) {
	e := c.console
	e.mu.Lock()
	if e.writer == nil && !c.closed {
		e.writer = c
	}
	mine, all := e.writer == c, append([]*echoCaller(nil), e.all...)
	e.mu.Unlock()
	if !mine {
		return 0, driver.ErrConsoleTaken
	}
	for _, each := range all {
		_, _ = each.output.Write(p)
	}
	return len(p), nil
}

func (c *echoCaller) Close() error {
	c.console.mu.Lock()
	defer c.console.mu.Unlock()
	c.closed = true
	c.console.closed++
	if c.console.writer == c {
		c.console.writer = nil
	}
	return c.PipeReader.Close()
}

// stopServer is the end of the server.
func (e *echoConsole) stopServer() { e.lose(io.EOF) }

// lose has all callers lose the console.
func (e *echoConsole) lose(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.all {
		_ = c.output.CloseWithError(cause)
	}
}

func statusError(err error) metav1.Status {
	reason, message := streams.SplitReason(err.Error())
	return metav1.Status{Reason: reason, Message: message}
}
