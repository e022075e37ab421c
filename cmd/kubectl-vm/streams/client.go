// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package streams connects to the streams of VirtualMachines: consoles, logs, commands and
// ports.
//
// Start with Discover, which finds the server of streams.
package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
)

const (
	// discoverTimeout is how long reading the ConfigMap may take.
	discoverTimeout = 10 * time.Second
	// maxErrorBody is how many bytes of an error's response are read.
	maxErrorBody = 64 << 10
)

// Client connects to streams.
type Client struct {
	config *rest.Config
	base   *url.URL
	// http is for plain responses. Its connections are not shared with other clients, since its
	// configuration has a Dial.
	http *http.Client
	// pod is the name of the VM's pod, if the API server serves the pod's streams: see ForPod.
	pod string
	// drivers are the drivers whose streams the server serves.
	drivers []string
}

// Discover returns a Client for the Drover in the cluster of config. A ConfigMap that only Drover
// may write contains the address of streams. The client sends credentials only to this address.
func Discover(ctx context.Context, config *rest.Config) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	found, err := readConfigMap(ctx, config)
	if err != nil {
		return nil, err
	}
	changed := streamConfig(config)
	if address := found.Data[streams.AddressKey]; address != "" {
		if err := useAddress(changed, address, found.Data[streams.CAKey]); err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %w", streams.ConfigMapNamespace, streams.ConfigMapName, err)
		}
	}
	c, err := newClient(changed)
	if err == nil {
		c.drivers = strings.Split(found.Data[streams.DriversKey], ",")
	}
	return c, err
}

// Serves reports whether the server serves streams of a driver.
func (c *Client) Serves(driver string) bool { return slices.Contains(c.drivers, driver) }

// streamConfig returns a copy of a configuration, without a timeout, which would end a stream.
func streamConfig(config *rest.Config) *rest.Config {
	changed := rest.CopyConfig(config)
	changed.Timeout = 0
	if changed.Dial == nil {
		changed.Dial = newDialer().DialContext
	}
	return changed
}

func newClient(config *rest.Config) (*Client, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	return &Client{config: config, base: base, http: client}, nil
}

// Host returns the host and port of the server.
func (c *Client) Host() string { return c.base.Host }

// Close closes connections that no response uses.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

func readConfigMap(ctx context.Context, config *rest.Config) (*corev1.ConfigMap, error) {
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	path := base.JoinPath("api/v1/namespaces", streams.ConfigMapNamespace, "configmaps", streams.ConfigMapName)
	body, err := getBody(ctx, transport, path)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("this cluster serves no consoles, logs, commands and ports of VMs; start drover-controller with --streams-address: %w in %s", err, streams.ConfigMapNamespace)
	case err != nil:
		return nil, fmt.Errorf("find where streams are served: %w", err)
	}
	defer func() { _ = body.Close() }()
	var found corev1.ConfigMap
	if err := json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&found); err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", streams.ConfigMapName, err)
	}
	return &found, nil
}

// newDialer returns a dialer of connections that end within two minutes if the other end disappears.
// Without this, a log would wait for its next line forever. WebSockets also have pings.
func newDialer() *net.Dialer {
	return &net.Dialer{
		Timeout: 30 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 15 * time.Second, Count: 4},
	}
}

// useAddress changes a configuration so that it reaches another server. It replaces the API
// server's CA, and resets insecure-skip-tls-verify.
func useAddress(config *rest.Config, address, ca string) error {
	target, err := url.Parse(address)
	if err != nil || target.Scheme != "https" || target.Host == "" || target.User != nil {
		return fmt.Errorf("%s is %q: it must be an https URL with a host", streams.AddressKey, address)
	}
	if ca == "" {
		return fmt.Errorf("%s is missing: the server's certificate could not be checked", streams.CAKey)
	}
	if config.Impersonate.UserName != "" {
		return errors.New("--as cannot be used for streams: the streams endpoint does not impersonate users")
	}
	config.Host, config.APIPath = address, ""
	config.CAFile, config.CAData = "", []byte(ca)
	config.Insecure, config.ServerName = false, ""
	return nil
}

// URL returns the URL of a VM's stream.
func (c *Client) URL(namespace, name string, s streams.Stream, query url.Values) *url.URL {
	if c.pod != "" {
		return c.podURL(namespace, s, query)
	}
	u := c.base.JoinPath(streams.Path(namespace, name, s))
	u.RawQuery = query.Encode()
	return u
}

// Get returns the body of a stream that is a plain response: Log and Interfaces.
func (c *Client) Get(ctx context.Context, namespace, name string, s streams.Stream, query url.Values) (io.ReadCloser, error) {
	body, err := getBody(ctx, c.http, c.URL(namespace, name, s, query))
	status := (*apierrors.StatusError)(nil)
	if errors.As(err, &status) && status.ErrStatus.Code == http.StatusNotFound && status.ErrStatus.Kind == "" {
		err = c.notServedError()
	}
	return body, err
}

// notServedError returns the error for a server that does not serve streams. Such a server answers
// the path of streams with a 404 without a Status.
func (c *Client) notServedError() error {
	return fmt.Errorf("no Drover serves consoles, logs, commands and ports of VMs at %s: it runs without its controller (drover up --without-controller), or ConfigMap %s names another server", c.base, streams.ConfigMapName)
}

// GetPath returns the body of a path that is not the path of a stream.
func (c *Client) GetPath(ctx context.Context, path string) (io.ReadCloser, error) {
	return getBody(ctx, c.http, c.base.JoinPath(path))
}

// Connect opens a WebSocket and copies until the stream ends. Its error contains the server's
// last Status: see EndReason.
func (c *Client) Connect(ctx context.Context, u *url.URL, o remotecommand.StreamOptions) error {
	if c.pod != "" {
		o.Tty, o.TerminalSizeQueue = false, nil // the guest has a terminal, but its container does not
	}
	executor, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	if err != nil {
		return err
	}
	// Discard the log of the library: it logs errors at the end of a stream, also when a user just leaves.
	err = executor.StreamWithContext(klog.NewContext(ctx, logr.Discard()), o)
	if c.pod != "" {
		return c.describePodEnd(err)
	}
	refused := (*httpstream.UpgradeFailureError)(nil)
	if errors.As(err, &refused) && strings.HasPrefix(refused.Cause.Error(), websocket.ErrBadHandshake.Error()+" (404 ") {
		return c.notServedError()
	}
	return err
}

// ErrNoWebSocket means that the server sends a stream only as a plain response, such as the log of a pod.
var ErrNoWebSocket = errors.New("the server does not open a WebSocket for this stream")

// TryWebSocket calls Connect for a stream that some servers only send as a plain response. It then returns
// ErrNoWebSocket.
func (c *Client) TryWebSocket(ctx context.Context, u *url.URL, o remotecommand.StreamOptions) error {
	if c.pod != "" {
		return ErrNoWebSocket
	}
	err := c.Connect(ctx, u, o)
	refused := (*httpstream.UpgradeFailureError)(nil)
	if errors.As(err, &refused) && strings.HasPrefix(refused.Cause.Error(), websocket.ErrBadHandshake.Error()+" (200 ") {
		return ErrNoWebSocket
	}
	return err
}

// ConnectPort copies between conn and a TCP port of a VM until one of them ends.
func (c *Client) ConnectPort(ctx context.Context, namespace, name string, port uint16, conn io.ReadWriter) error {
	number := strconv.Itoa(int(port))
	u := c.URL(namespace, name, streams.PortForward, url.Values{"port": {number}})
	if c.pod != "" {
		return c.connectPodPort(ctx, u, number, conn)
	}
	return c.Connect(ctx, u, remotecommand.StreamOptions{Stdin: conn, Stdout: conn})
}

func getBody(ctx context.Context, client *http.Client, u *url.URL) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	direct := *client
	// Do not follow redirects: the transport would send the credentials to the other address too.
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := direct.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer func() { _ = resp.Body.Close() }()
	return nil, responseError(resp)
}

// responseError returns the Status in the body of a response, or an error with the HTTP status.
func responseError(resp *http.Response) error {
	var status metav1.Status
	err := json.NewDecoder(io.LimitReader(resp.Body, maxErrorBody)).Decode(&status)
	if err == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(resp.StatusCode), Message: "the server answered " + resp.Status, //nolint:gosec // an HTTP status
		Reason: reasonOf(resp.StatusCode),
	}}
}

func reasonOf(code int) metav1.StatusReason {
	switch code {
	case http.StatusNotFound:
		return metav1.StatusReasonNotFound
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusUnauthorized:
		return metav1.StatusReasonUnauthorized
	case http.StatusServiceUnavailable:
		return metav1.StatusReasonServiceUnavailable
	}
	return metav1.StatusReasonUnknown
}

// EndReason returns the reason with which the server ended a stream, or "" if the connection was lost.
func EndReason(err error) metav1.StatusReason {
	if err == nil {
		return ""
	}
	reason, _ := streams.SplitReason(err.Error())
	return reason
}

// Cause returns the server's error for a stream that failed, without the texts that libraries add.
func Cause(err error) error {
	if refused := (*httpstream.UpgradeFailureError)(nil); errors.As(err, &refused) {
		err = refused.Cause
	}
	if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
		return status
	}
	if err == nil {
		return nil
	}
	if reason, text := streams.SplitReason(err.Error()); reason != "" {
		return errors.New(text)
	}
	return err
}
