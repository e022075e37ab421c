// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package egress sends requests to servers that users name, but only to hosts that the
// operator allows. Otherwise users could reach servers in the network of Drover's host, or read
// their responses.
//
// Start with Client.Web and Client.Registry. Explain (errors.go) describes failures.
package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	// dialTimeout limits the time for a connection, and responseTimeout the time until the
	// response begins.
	dialTimeout     = 30 * time.Second
	responseTimeout = 30 * time.Second
	// maxRedirects is the maximum number of redirects before a response.
	maxRedirects = 10
	// maxDocumentSize is the maximum size of a response that is read into memory, such as a
	// manifest. Registries do not accept larger manifests.
	maxDocumentSize = 4 << 20
)

// Client makes requests. It is safe for concurrent use.
type Client struct {
	hosts           Hosts
	proxy           func(*http.Request) (*url.URL, error)
	direct, proxied *http.Transport
}

// New returns a client that may contact public addresses and hosts. If the environment names a
// proxy, the proxy decides what may be reached.
func New(hosts Hosts) *Client {
	c := &Client{hosts: hosts, proxy: http.ProxyFromEnvironment}
	c.direct, c.proxied = newTransport(), newTransport()
	c.direct.DialContext = c.dialAllowed
	c.proxied.Proxy = func(r *http.Request) (*url.URL, error) { return c.proxy(r) }
	return c
}

func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: responseTimeout, IdleConnTimeout: dialTimeout,
		MaxResponseHeaderBytes: 1 << 20,
		// The transport must not decompress, since sizes and digests describe the bytes as sent.
		DisableCompression: true,
	}
}

// dialAllowed connects only to allowed hosts. It checks each address that is dialled, not an
// earlier result of name resolution.
func (c *Client) dialAllowed(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTimeout, ControlContext: func(_ context.Context, _, dialled string, _ syscall.RawConn) error {
		return c.hosts.checkAddress(host, dialled)
	}}
	return d.DialContext(ctx, network, address)
}

// RoundTrip makes one request, through the proxy if there is one.
func (c *Client) RoundTrip(request *http.Request) (*http.Response, error) {
	proxy, err := c.proxy(request)
	if err != nil {
		return nil, Errorf("the proxy of the environment is not a valid URL")
	}
	if proxy != nil {
		return c.proxied.RoundTrip(request)
	}
	return c.direct.RoundTrip(request)
}

// Web returns a transport for web servers, which follows redirects. A response may have at most
// maxSize bytes. The transport calls onData whenever data arrives.
func (c *Client) Web(maxSize int64, onData func()) http.RoundTripper {
	return c.newRoundTripper(onData, nil, func(*http.Request) int64 { return maxSize })
}

// Registry returns a transport for registries, which follows redirects as Web does. A blob may have
// maxBlob bytes, and every other response maxDocumentSize. plainHTTP allows HTTP without TLS.
func (c *Client) Registry(plainHTTP bool, maxBlob int64, onData func()) http.RoundTripper {
	check := func(r *http.Request) error {
		if r.URL.Scheme != "https" && !plainHTTP {
			return errPlainHTTP
		}
		return nil
	}
	return c.newRoundTripper(onData, check, func(r *http.Request) int64 {
		if isBlob(r) {
			return maxBlob
		}
		return maxDocumentSize
	})
}

// isBlob reports whether a request to a registry is for a blob. It looks only at the end of the path,
// since the name of a repository may contain "blobs" too.
func isBlob(r *http.Request) bool {
	path := strings.Split(r.URL.Path, "/")
	last := len(path) - 1
	return last >= 1 && path[last-1] == "blobs" && strings.HasPrefix(path[last], "sha256:")
}

var errPlainHTTP = Errorf("the registry does not answer by TLS: plain HTTP is allowed only for registries in --image-plain-http-registries")

func (c *Client) newRoundTripper(onData func(), check func(*http.Request) error, limitOf func(*http.Request) int64) http.RoundTripper {
	client := http.Client{Transport: c, CheckRedirect: checkRedirect}
	return roundTripperFunc(func(request *http.Request) (*http.Response, error) {
		if check != nil {
			if err := check(request); err != nil {
				return nil, err
			}
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, withoutURL(err)
		}
		if encoding := response.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
			_ = response.Body.Close()
			return nil, Errorf("the server answered with a Content-Encoding: it must send the file as it is")
		}
		response.Body = &responseBody{ReadCloser: response.Body, onData: onData, limit: limitOf(request)}
		return response, nil
	})
}

// roundTripperFunc is a function as an http.RoundTripper.
type roundTripperFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripperFunc) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// withoutURL removes the URL from an error, since its query may hold secrets.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// checkRedirect rejects redirects from https to http, since only TLS protects the content on the
// way. It removes credentials if the server changes, and the Referer, whose query may have
// secrets.
func checkRedirect(next *http.Request, via []*http.Request) error {
	last, first := via[len(via)-1].URL, via[0].URL
	switch {
	case len(via) > maxRedirects:
		return Errorf("redirected more than %d times", maxRedirects)
	case last.Scheme == "https" && next.URL.Scheme != "https":
		return Errorf("%.200s redirects to %.200s: from https:// it may only go on to https://", Redact(last.String()), Redact(next.URL.String()))
	case next.Body != nil:
		return Errorf("%.200s redirects to %.200s: a login is not sent elsewhere", Redact(last.String()), Redact(next.URL.String()))
	}
	next.Header.Del("Referer")
	if next.URL.Host != first.Host || next.URL.Scheme != first.Scheme {
		next.Header.Del("Authorization")
	}
	return nil
}

// Redact returns a source without possible secrets: user, password and query.
func Redact(source string) string {
	scheme, rest, found := strings.Cut(source, "://")
	if !found || scheme == "file" {
		return source
	}
	if end := strings.IndexAny(rest, "?#"); end >= 0 {
		rest = rest[:end]
	}
	host := rest
	if end := strings.IndexByte(rest, '/'); end >= 0 {
		host = rest[:end]
	}
	shown := scheme + "://" + rest[strings.LastIndexByte(host, '@')+1:]
	if _, err := url.Parse(shown); err != nil && strings.HasPrefix(strings.ToLower(scheme), "http") {
		return scheme + "://..." // it is unknown where user and password end
	}
	return shown
}

// responseBody limits the body of a response, whatever length the server states. It returns at most
// limit+1 bytes, and then fails. From the additional byte the reader sees that the limit is exceeded.
type responseBody struct {
	io.ReadCloser

	onData          func()
	limit, received int64
}

func (b *responseBody) Read(p []byte) (int, error) {
	if b.received > b.limit {
		return 0, Errorf("the server's answer has more than %d bytes", b.limit)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.limit+1-b.received)])
	if n > 0 {
		b.onData()
	}
	b.received += int64(n)
	return n, err
}
