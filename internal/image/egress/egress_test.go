// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func hosts(t *testing.T, list ...string) Hosts {
	t.Helper()
	h, err := ParseHosts(list)
	assert.NoError(t, err)
	return h
}

func TestClasses(t *testing.T) {
	t.Parallel()
	for class, addresses := range map[class][]string{
		public: {
			"1.1.1.1", "168.63.129.15", "168.63.129.17", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0",
			"172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "223.255.255.255", "2606:4700::1111", "2001:db8::1", "::ffff:1.1.1.1", "64:ff9b::101:101", "2002:101:101::1",
		},
		private: {
			"10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255", "100.64.0.0", "100.127.255.255", "100.100.100.200",
			"198.18.0.1", "192.0.0.1", "fc00::1", "fd00:ec2::253", "fdff:ffff::1", "fec0::1", "64:ff9b:1::1",
			"::ffff:10.0.0.1", "::10.0.0.1", "::ffff:0:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2002:c0a8:101:2::3", "2001:0:a00:1:0:0:f7f7:f7f7", "2001:0:808:808:0:0:f5ff:fffe",
		},
		loopback: {"127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "2001:0:808:808:0:0:80ff:fffe"},
		forbidden: {
			"168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "fd00:ec2::254",
			"0.0.0.0", "0.1.2.3", "169.254.0.0", "169.254.169.254", "169.254.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
			"::", "fe80::1", "fe80::1%eth0", "febf::1", "ff02::1", "::ffff:169.254.169.254", "::169.254.169.254", "::ffff:0.0.0.0", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:0:808:808:0:0:5601:5601",
		},
	} {
		for _, text := range addresses {
			got := classOf(netip.MustParseAddr(text).WithZone(""))
			assert.True(t, got == class, "%s is %s address, want %s", text, got, class)
		}
	}
}

// TestEmbedded checks that an IPv4 address has the same class in every form.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	for range 20000 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], random.Uint32())
		plain := netip.AddrFrom4(b)
		want := strictness[classOf(plain)]
		for name, form := range map[string][16]byte{
			"mapped":     {10: 0xff, 11: 0xff, 12: b[0], 13: b[1], 14: b[2], 15: b[3]},
			"compatible": {12: b[0], 13: b[1], 14: b[2], 15: b[3]},
			"translated": {8: 0xff, 9: 0xff, 12: b[0], 13: b[1], 14: b[2], 15: b[3]},
			"NAT64":      {0, 0x64, 0xff, 0x9b, 12: b[0], 13: b[1], 14: b[2], 15: b[3]},
			"6to4":       {0x20, 2, b[0], b[1], b[2], b[3], 15: 1},
			"Teredo":     {0x20, 1, 4: 8, 5: 8, 6: 8, 7: 8, 12: ^b[0], 13: ^b[1], 14: ^b[2], 15: ^b[3]},
		} {
			got := classOf(netip.AddrFrom16(form))
			assert.True(t, strictness[got] >= want, "%s as %s is %s address, want %s", plain, name, got, classOf(plain))
		}
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		allowed       []string
		host, dialled string
		refused       string
	}{
		"public":                       {nil, "images.example", "1.1.1.1:443", ""},
		"private":                      {nil, "images.example", "10.0.0.1:443", "images.example resolves to a private address, which is contacted only if --image-hosts"},
		"loopback":                     {nil, "localhost", "[::1]:80", "a loopback address"},
		"link-local":                   {nil, "meta", "169.254.169.254:80", "which is never contacted"},
		"a name":                       {[]string{"images.example"}, "images.example", "10.0.0.1:443", ""},
		"a name in another way":        {[]string{"Images.Example."}, "IMAGES.example.", "10.0.0.1:443", ""},
		"another name":                 {[]string{"images.example"}, "x.images.example", "10.0.0.1:443", "a private address"},
		"a name for link-local":        {[]string{"images.example"}, "images.example", "169.254.169.254:80", "which is never contacted"},
		"a name for link-local, v6":    {[]string{"images.example"}, "images.example", "[fe80::1%eth0]:80", "which is never contacted"},
		"a CIDR":                       {[]string{"10.1.0.0/16"}, "images.example", "10.1.2.3:443", ""},
		"beside a CIDR":                {[]string{"10.1.0.0/16"}, "images.example", "10.2.2.3:443", "a private address"},
		"a CIDR, address in another":   {[]string{"10.1.0.0/16"}, "images.example", "[64:ff9b::a01:203]:443", ""},
		"a CIDR, beside it in another": {[]string{"10.1.0.0/16"}, "images.example", "[64:ff9b::a02:203]:443", "a private address"},
		"a mapped CIDR":                {[]string{"::ffff:10.1.0.0/112"}, "images.example", "10.1.2.3:443", ""},
		"an address":                   {[]string{"fd00::1"}, "images.example", "[fd00::1]:443", ""},
		"all, and link-local":          {[]string{"0.0.0.0/0", "::/0"}, "meta", "[::ffff:169.254.169.254]:80", "which is never contacted"},
		"all, and loopback":            {[]string{"0.0.0.0/0"}, "localhost", "127.0.0.1:80", ""},
		"no address":                   {nil, "images.example", "images.example:80", "an invalid address"},
	} {
		err := hosts(t, c.allowed...).checkAddress(c.host, c.dialled)
		assert.ErrorSays(t, name, err, c.refused)
	}
	for entry, want := range map[string]string{
		"": "each entry must be", "localhost:5000": "without a port", "http://x": "each entry must be", "10.0.0.0/33": "each entry must be", "*.example": "each entry must be", "[::1]": "each entry must be",
		"169.254.169.254": "are never contacted", "169.254.0.0/16": "are never contacted", "168.63.129.16": "are never contacted", "fd00:ec2::254": "are never contacted", "fe80::/64": "are never contacted", "0.0.0.0": "are never contacted", "::ffff:169.254.0.0/112": "are never contacted",
	} {
		assert.ErrorSays(t, entry, assert.ErrorOf(ParseHosts([]string{entry})), want)
	}
}

// TestOwnAddresses checks that an address which an interface of the host has when it is
// dialled counts as a loopback one, public or not.
func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	var own []net.Addr
	var failure error
	check := func(address string, allowed ...string) error {
		h := hosts(t, allowed...)
		h.interfaces = func() ([]net.Addr, error) { return own, failure }
		return h.checkAddress("images.example", address)
	}
	assert.NoError(t, check("1.2.3.4:443"))
	own = []net.Addr{
		&net.IPNet{IP: net.ParseIP("1.2.3.4"), Mask: net.CIDRMask(24, 32)},
		&net.IPNet{IP: net.ParseIP("2606:4700::1"), Mask: net.CIDRMask(64, 128)},
		&net.IPNet{IP: net.ParseIP("10.0.0.1"), Mask: net.CIDRMask(8, 32)},
	}
	for _, address := range []string{"1.2.3.4:443", "[::ffff:1.2.3.4]:443", "[64:ff9b::102:304]:443", "[2606:4700::1]:443", "10.0.0.1:443"} {
		assert.ErrorSays(t, address, check(address), "a loopback address, which is contacted only if --image-hosts")
		assert.NoError(t, check(address, "images.example"))
	}
	assert.NoError(t, check("10.0.0.1:443", "10.0.0.0/8"))
	assert.NoError(t, check("1.2.3.5:443")) // of the same network
	failure = errors.New("no netlink")
	assert.True(t, check("1.2.3.5:443") != nil, "contacted though the addresses of the host are not known")
}

// TestOwnAddressesAreReal checks that a client reads the real addresses of the host.
func TestOwnAddressesAreReal(t *testing.T) {
	t.Parallel()
	own, err := Hosts{}.isOwn(netip.MustParseAddr("127.0.0.1"))
	assert.True(t, err == nil && own, "127.0.0.1 is an address of the host: %t, and the error %v", own, err)
}

// get makes a request as for an image.
func get(t *testing.T, rt http.RoundTripper, url string) (string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	assert.NoError(t, err)
	answer, err := rt.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(answer.Body)
	return string(content), err
}

func serve(t *testing.T, f http.HandlerFunc) (address, port string) {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	assert.NoError(t, err)
	return server.URL, port
}

func none() {}

// TestDialled checks that the address counts, however a host is named, and that no
// request reaches a refused one.
func TestDialled(t *testing.T) {
	t.Parallel()
	asked := 0
	_, port := serve(t, func(http.ResponseWriter, *http.Request) { asked++ })
	c := New(hosts(t))
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "[::]", "127.1", "2130706433", "0x7f.1"} {
		for name, rt := range map[string]http.RoundTripper{"web": c.Web(1<<20, none), "registry": c.Registry(true, 1<<20, none)} {
			_, err := get(t, rt, "http://"+host+":"+port)
			assert.True(t, err != nil, "%s of %s was asked", name, host)
		}
	}
	assert.True(t, asked == 0, "the server was asked %d times", asked)
	_, err := get(t, New(hosts(t, "127.0.0.0/8")).Web(1<<20, none), "http://127.0.0.1:"+port)
	assert.True(t, err == nil && asked == 1, "allowed: got the error %v, and it was asked %d times", err, asked)
	_, err = get(t, New(hosts(t, "localhost")).Web(1<<20, none), "http://localhost:"+port)
	assert.True(t, err == nil && asked == 2, "allowed by name: got the error %v, and it was asked %d times", err, asked)
}

// TestRedirected checks that a redirect does not lead to a refused address either.
func TestRedirected(t *testing.T) {
	t.Parallel()
	url, port := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/secret" {
			_, _ = io.WriteString(w, "password")
			return
		}
		http.Redirect(w, r, "http://127.0.0.2:"+r.URL.Query().Get("port")+"/secret", http.StatusFound) //nolint:gosec // a server that means harm
	})
	for name, rt := range map[string]http.RoundTripper{"web": New(hosts(t, "127.0.0.1")).Web(1<<20, none), "registry": New(hosts(t, "127.0.0.1")).Registry(true, 1<<20, none)} {
		got, err := get(t, rt, url+"/?port="+port)
		assert.True(t, err != nil && got == "" && strings.Contains(Explain(err).Error(), "127.0.0.2 resolves to a loopback address"),
			"%s: got %q and the error %v", name, got, err)
	}
}

// TestRedirectsCarryNothing checks that neither a login nor the place where it was used
// is sent elsewhere.
func TestRedirectsCarryNothing(t *testing.T) {
	t.Parallel()
	var headers []http.Header
	elsewhere, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) { headers = append(headers, r.Header) })
	url, port := serve(t, func(w http.ResponseWriter, r *http.Request) {
		headers = append(headers, r.Header)
		if r.URL.Path == "/here" {
			return
		}
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusTemporaryRedirect) //nolint:gosec // a server that means harm
	})
	rt := New(hosts(t, "127.0.0.1", "localhost")).Registry(true, 1<<20, none)
	ask := func(method, to string, body io.Reader) error {
		request, err := http.NewRequestWithContext(t.Context(), method, url+"/?secret=1&to="+to, body)
		assert.NoError(t, err)
		request.Header.Set("Authorization", "Basic c2VjcmV0")
		answer, err := rt.RoundTrip(request)
		if err == nil {
			assert.NoError(t, answer.Body.Close())
		}
		return err
	}
	for to, carries := range map[string]bool{elsewhere: false, "http://localhost:" + port + "/here": false, "/here": true} {
		headers = nil
		assert.NoError(t, ask(http.MethodGet, to, nil))
		last := headers[len(headers)-1]
		got := last.Get("Authorization") != ""
		assert.True(t, len(headers) == 2 && got == carries && last.Get("Referer") == "", "%s: the redirect carries %v", to, last)
	}
	headers = nil
	err := ask(http.MethodPost, elsewhere, strings.NewReader("password=1"))
	assert.True(t, err != nil && len(headers) == 1 && !strings.Contains(err.Error(), "secret"), "a login: got the error %v, and %d were asked", err, len(headers))
}

// TestProxy checks that an operator's proxy is used at any address, and that it decides
// on the rest.
func TestProxy(t *testing.T) {
	t.Parallel()
	proxy, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.String()) }) //nolint:gosec // it is the test that reads it
	c := New(hosts(t))
	c.proxy = func(r *http.Request) (*url.URL, error) {
		if r.URL.Hostname() == "direct.test" {
			return nil, nil //nolint:nilnil // Nil is for no proxy.
		}
		return url.Parse(proxy)
	}
	got, err := get(t, c.Web(1<<20, none), "http://images.test/x")
	assert.True(t, err == nil && got == "http://images.test/x", "got %q and the error %v", got, err)
	c.proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("http://user:password@proxy") }
	_, err = get(t, c.Web(1<<20, none), "http://images.test/x")
	assert.True(t, err != nil && !strings.Contains(err.Error(), "password"), "got the error %v", err)
}

// TestPlain checks that only allowed registries are contacted without TLS, also after
// redirects.
func TestPlain(t *testing.T) {
	t.Parallel()
	asked := 0
	url, _ := serve(t, func(http.ResponseWriter, *http.Request) { asked++ })
	c := New(hosts(t, "127.0.0.1"))
	_, err := get(t, c.Registry(false, 1<<20, none), url)
	assert.True(t, errors.Is(err, errPlainHTTP) && asked == 0, "got the error %v, and it was asked %d times", err, asked)
	_, err = get(t, c.Registry(true, 1<<20, none), url)
	assert.True(t, err == nil && asked == 1, "got the error %v, and it was asked %d times", err, asked)
}

// TestAsItIs checks that nothing is decompressed without being counted so.
func TestAsItIs(t *testing.T) {
	t.Parallel()
	url, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "it asks for", r.Header.Get("Accept-Encoding"), "")
		w.Header().Set("Content-Encoding", "gzip")
	})
	assert.ErrorSays(t, "encoded", assert.ErrorOf(get(t, New(hosts(t, "127.0.0.1")).Web(1, none), url)), "Content-Encoding")
}

// TestLimits checks that every response is limited where the server states no length, and that not more is read.
func TestLimits(t *testing.T) {
	t.Parallel()
	const limit = 5 << 20
	url, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("status") {
			w.WriteHeader(http.StatusTeapot)
		}
		if r.URL.Query().Has("whole") {
			_, _ = w.Write(make([]byte, limit))
			return
		}
		for range 16 { // MiB, without a length
			_, _ = w.Write(make([]byte, 1<<20))
		}
	})
	c := New(hosts(t, "127.0.0.1"))
	web, registry := c.Web(limit, none), c.Registry(true, limit, none)
	for path, c := range map[string]struct {
		rt    http.RoundTripper
		limit int
	}{
		"/file":                                 {web, limit},
		"/file?status":                          {web, limit},
		"/file?whole":                           {web, 0},
		"/v2/":                                  {registry, maxDocumentSize},
		"/v2/?status":                           {registry, maxDocumentSize},
		"/v2/x/manifests/1":                     {registry, maxDocumentSize},
		"/v2/x/manifests/1?whole":               {registry, maxDocumentSize},
		"/token":                                {registry, maxDocumentSize},
		"/v2/x/blobs/sha256:1":                  {registry, limit},
		"/v2/x/blobs/sha256:1?whole":            {registry, 0},
		"/v2/x/blobs/1":                         {registry, maxDocumentSize},
		"/v2/x/blobs/y/manifests/1":             {registry, maxDocumentSize},
		"/v2/x/blobs/manifests/sha256:1":        {registry, maxDocumentSize},
		"/v2/x/blobs/sha256:1/manifests/latest": {registry, maxDocumentSize},
	} {
		got, err := get(t, c.rt, url+path)
		if c.limit == 0 {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorSays(t, path, err, fmt.Sprintf("more than %d bytes", c.limit))
		assert.True(t, len(got) <= c.limit+1, "%s: %d bytes were read where %d are allowed", path, len(got), c.limit)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{ //nolint:gosec // no logins
		"https://user:secret@x.test/a.img?token=secret#secret": "https://x.test/a.img",
		"https://x.test":                     "https://x.test",
		"https://x.test?secret":              "https://x.test",
		"https://user:secret@x.test":         "https://x.test",
		"http://user:s@secret@x.test:80/a@b": "http://x.test:80/a@b",
		"http://user:se/cret@x.test/a":       "http://...",
		"oci://x.test:5000/a:b":              "oci://x.test:5000/a:b",
		"oci://debian:12":                    "oci://debian:12",
		"oci://x.test/a@sha256:0":            "oci://x.test/a@sha256:0",
		"file:///srv/a?b#c":                  "file:///srv/a?b#c",
		"/srv/a@b?c":                         "/srv/a@b?c",
	} {
		assert.Equal(t, fmt.Sprintf("%q is shown as", source), Redact(source), want)
	}
}

// TestExplain checks that the reported words are Drover's, whatever a server says.
func TestExplain(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	var said []string
	for _, r := range reasons {
		said = append(said, r.text)
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"no token":           {errors.New("no token in bearer response:\n" + secret), "the token server gave no token"},
		"realm":              {errors.New("invalid realm in www-authenticate: " + secret), "the registry refers to a token server that is not allowed"},
		"anything":           {errors.New(secret), "the request failed for an unknown reason, such as an invalid answer"},
		"no name":            {&net.DNSError{Err: secret, Name: secret, IsNotFound: true}, "name not resolved: there is no such host"},
		"name":               {&net.DNSError{Err: secret, Name: secret}, "name not resolved"},
		"refused":            {&net.OpError{Op: secret, Err: syscall.ECONNREFUSED}, "connection refused"},
		"timeout":            {&url.Error{URL: secret, Err: context.DeadlineExceeded}, "timeout"},
		"certificate's name": {x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{secret}}, Host: "x"}, "TLS: the certificate is for another name"},
		"no TLS":             {tls.RecordHeaderError{Msg: secret}, "the server does not support TLS"},
		"ours":               {&url.Error{URL: secret, Err: StatusError(404)}, "the server answered 404 Not Found"},
		"an unknown status":  {StatusError(799), "the server answered 799"},
	} {
		assert.Equal(t, name+": it is explained as", Explain(c.err).Error(), c.want)
	}
	// Others are matched by their words only, which are never repeated.
	for _, r := range reasons {
		got := Explain(fmt.Errorf("%s %s", r.text, secret)).Error()
		assert.True(t, slices.Contains(append(said, "the request failed for an unknown reason, such as an invalid answer"), got), "it is explained as %q", got)
	}
}
