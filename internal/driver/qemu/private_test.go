// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// secret is a text that must stay hidden, wherever a server answers with it.
const secret = "hunter2"

// spyLog records what a driver logs.
type spyLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *spyLog) write(prefix, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(prefix + args + "\n")
}

func (l *spyLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// collectVisible returns all that is visible of a failed fetch: the error of Ensure, what List
// reports meanwhile, and the log.
func (d *Driver) collectVisible(t *testing.T, spec driver.ServerSpec, log *spyLog) (shown string, err error) {
	t.Helper()
	var seen strings.Builder
	assert.Eventually(t, "Ensure fails", func(t testing.TB) error {
		var s driver.Server
		s, err = d.Ensure(t.Context(), spec)
		all, listErr := d.List(t.Context(), spec.UID)
		assert.NoError(t, listErr)
		fmt.Fprintln(&seen, s.Progress, s.Note, s.Err, err, all)
		for _, one := range all {
			fmt.Fprintln(&seen, one.Progress, one.Note, one.Err)
		}
		return assert.ErrorUnless(err != nil, "it does not")
	})
	return seen.String() + log.String(), err
}

// TestRefusedImageHidesSecrets checks that the refusal of another image names both
// without their private parts.
func TestRefusedImageHidesSecrets(t *testing.T) {
	t.Parallel()
	d, e := newEngine(t).open(t), newEngine(t)
	private := func(host string) string {
		return "https://user:" + secret + "@" + host + "/a.img?signature=" + secret
	}
	for _, c := range []struct{ checksum, path string }{{"", ""}, {"sha256:" + strings.Repeat("0", 64), "/x/sha256-" + strings.Repeat("1", 64)}} {
		s := d.Host.InstanceOf(e.spec().UID)
		s.Root.Size, s.Root.Image.Source, s.Root.Image.Path = 1, source.Parse(private("old.test")), c.path
		spec := e.spec()
		spec.Image = driver.Image{Source: private("new.test"), Checksum: c.checksum}
		r := (&convergence{driver: d, host: d.Host, spec: spec, inst: s}).refusedImage()
		wantRefused(t, driver.Server{Refused: r}, "spec.image is https://new.test/a.img", "stands on https://old.test/a.img")
		assert.True(t, !strings.Contains(r.Message, secret), "the secret is seen: %s", r.Message)
	}
}

// serveAt serves at an address of this host.
func serveAt(t *testing.T, address string, f http.HandlerFunc) (host string) {
	t.Helper()
	listener := framework.Listen(t, "tcp", address+":0")
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: f}} //nolint:gosec // a test's
	server.Start()
	t.Cleanup(server.Close)
	return listener.Addr().String()
}

// TestForeignAnswers checks that nothing of a server's answer is visible, and that a
// registry leads only to allowed places.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	var internalAsked sync.Map
	internal := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		internalAsked.Store(r.URL.Path, true)
		_, _ = io.WriteString(w, `{"password":"`+secret+`"}`)
	}))
	t.Cleanup(internal.Close)
	port := internal.URL[strings.LastIndexByte(internal.URL, ':'):]
	body := `{"errors":[{"code":"` + secret + `","message":"` + secret + `","detail":"` + secret + `"}]}`
	answers := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, status) }
	}
	realm := func(at string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				_, _ = io.WriteString(w, `{"password":"`+secret+`"}`)
				return
			}
			if at == "" {
				at = "http://" + r.Host + "/token"
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+at+`",service="`+secret+`"`)
			http.Error(w, body, http.StatusUnauthorized)
		}
	}
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		scheme string
		says   string
	}{
		"tokens from the registry":    {realm(""), "oci", "the token server gave no token"},
		"tokens of a loopback name":   {realm("http://localhost" + port + "/loopback"), "oci", "localhost resolves to a loopback address"},
		"tokens of a loopback":        {realm("http://127.0.0.1" + port + "/literal"), "oci", "a token server that is not allowed"},
		"tokens of a number":          {realm("http://2130706433" + port + "/number"), "oci", ""},
		"tokens of cloud metadata":    {realm("http://169.254.169.254/latest"), "oci", "a token server that is not allowed"},
		"a registry that refuses":     {answers(http.StatusForbidden), "oci", "the server answered 403 Forbidden"},
		"a registry that is not well": {answers(http.StatusNotImplemented), "oci", "the server answered 501 Not Implemented"},
		"a registry that says it all": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }, "oci", "there is no disk"},
		"a registry that says little": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, secret) }, "oci", "the request failed for an unknown reason"},
		"a web server that refuses":   {answers(http.StatusUnauthorized), "http", "the server answered 401 Unauthorized"},
		"a web server's page":         {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }, "http", "its checksum is"},
		"a redirect to a loopback": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1"+port+"/redirected?token="+secret, http.StatusFound)
		}, "http", "127.0.0.1 resolves to a loopback address"},
		"a redirect of a registry": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://user:"+secret+"@127.0.0.1"+port+"/redirected?token="+secret, http.StatusFound)
		}, "oci", "127.0.0.1 resolves to a loopback address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := serveAt(t, "127.0.0.3", c.serve)
			log, o := &spyLog{}, e.options()
			o.Fetch = image.Policy{Hosts: []string{"127.0.0.3"}, PlainHTTP: []string{host}}
			o.Log = funcr.New(log.write, funcr.Options{Verbosity: 9})
			d := openWith(t, o)
			spec := e.spec()
			sum := "sha256:" + strings.Repeat("0", 64)
			spec.Image = driver.Image{Source: c.scheme + "://user:" + secret + "@" + host + "/x?" + secret, Checksum: sum}
			if c.scheme == "oci" {
				spec.Image.Source = "oci://" + host + "/x:1"
			}
			seen, err := d.collectVisible(t, spec, log)
			wantError(t, err, driver.ErrRetry, c.says, driver.ReasonImageUnavailable)
			assert.True(t, !strings.Contains(seen, secret) && !strings.Contains(seen, base64.StdEncoding.EncodeToString([]byte(secret))),
				"the secret is seen: %s", seen)
		})
	}
	t.Cleanup(func() { // after all of them
		internalAsked.Range(func(path, _ any) bool {
			t.Errorf("the internal server was asked for %s", path)
			return true
		})
	})
}

// TestLoginsNeedTLS checks that the operator's logins are not sent to a registry without
// TLS, and that such a registry is contacted only if the operator allows it.
func TestLoginsNeedTLS(t *testing.T) {
	var mu sync.Mutex
	var asked, logins int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		if r.Header.Get("Authorization") != "" {
			logins++
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		http.Error(w, "", http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	host := server.Listener.Addr().String()
	config := t.TempDir()
	content, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte("user:" + secret))}}})
	assert.NoError(t, errors.Join(err, os.WriteFile(filepath.Join(config, "config.json"), content, 0o600)))
	t.Setenv("HOME", config)
	t.Setenv("DOCKER_CONFIG", config)
	e := newEngine(t)
	spec := e.spec()
	spec.Image = driver.Image{Source: "oci://" + host + "/x:1"}
	wantError(t, e.open(t).waitFor(t, spec), driver.ErrRetry, "plain HTTP is allowed only for registries in --image-plain-http-registries", driver.ReasonImageUnavailable)
	assert.True(t, asked == 0, "without leave it was asked %d times", asked)
	strict := e.options()
	strict.Fetch.PlainHTTP = []string{host}
	wantError(t, assert.ErrorOf(openWith(t, strict).Ensure(t.Context(), spec)), driver.ErrInvalid, "image.checksum is empty")
	wantError(t, e.openFor(t, host).waitFor(t, spec), driver.ErrRetry, "the server answered 401 Unauthorized", driver.ReasonImageUnavailable)
	assert.True(t, asked != 0 && logins == 0, "it was asked %d times, of which %d with a login", asked, logins)
}
