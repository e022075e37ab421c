// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

// service is a service that signs certificates of an hour.
type service struct {
	*Client

	clock    *testingclock.FakeClock
	ca       *x509.Certificate
	key      *ecdsa.PrivateKey
	answers  atomic.Int32
	busyFor  int32 // the first answers say that the service is busy
	refusing string
}

func newService(t *testing.T) *service {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the kubeconfig must be root's")
	}
	clock := testingclock.NewFakeClock(time.Now())
	s := &service{clock: clock, Client: &Client{Dir: t.TempDir(), RuntimeDir: t.TempDir(), Clock: clock}}
	assert.NoError(t, os.Chmod(s.RuntimeDir, 0o700))
	s.replaceAuthority(t)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: SocketPath(s.Dir), Net: "unix"})
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, listener.Close()) })
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			s.serve(conn)
		}
	}()
	return s
}

// replaceAuthority makes a new CA, as a new data dir has.
func (s *service) replaceAuthority(t *testing.T) {
	t.Helper()
	var err error
	s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: s.clock.Now().Add(100 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &s.key.PublicKey, s.key)
	assert.NoError(t, err)
	s.ca, err = x509.ParseCertificate(der)
	assert.NoError(t, err)
	content, err := FormatKubeconfig(s.Dir, "https://127.0.0.1:6443", pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: der}), "/usr/bin/drover")
	assert.NoError(t, errors.Join(err, os.WriteFile(KubeconfigPath(s.Dir), content, 0o600)))
}

func (s *service) serve(conn *net.UnixConn) {
	defer func() { _ = conn.Close() }()
	text, _ := io.ReadAll(conn)
	answer := Answer{Error: s.refusing}
	if s.answers.Add(1) <= s.busyFor {
		answer = Answer{Busy: true, Error: "busy"}
	} else if request, err := x509.ParseCertificateRequest(text); err == nil && s.refusing == "" {
		answer.Certificate = s.sign(request)
	}
	_ = json.NewEncoder(conn).Encode(answer)
}

func (s *service) sign(request *x509.CertificateRequest) string {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: s.clock.Now().Add(-time.Minute), NotAfter: s.clock.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: "unix:ann", OrganizationalUnit: []string{"user-ann"}},
	}
	der, _ := x509.CreateCertificate(rand.Reader, template, s.ca, request.PublicKey, s.key)
	return string(pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: der}))
}

// TestCache checks when a client logs in again.
func TestCache(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(t *testing.T, s *service)
		logins int32
	}{
		"the same hour":         {func(*testing.T, *service) {}, 1},
		"five minutes remain":   {func(_ *testing.T, s *service) { s.clock.Step(56 * time.Minute) }, 2},
		"another authority":     {func(t *testing.T, s *service) { s.replaceAuthority(t) }, 2}, //nolint:thelper // a step
		"no folder":             {func(_ *testing.T, s *service) { s.RuntimeDir = "" }, 2},
		"an open folder":        {func(t *testing.T, s *service) { assert.NoError(t, os.Chmod(s.RuntimeDir, 0o777)) }, 2},                   //nolint:thelper // a step
		"another user's folder": {func(t *testing.T, s *service) { assert.NoError(t, os.Chown(s.RuntimeDir, 1, 1)) }, 2},                    //nolint:thelper // a step
		"an open file":          {func(t *testing.T, s *service) { assert.NoError(t, os.Chmod(s.cachePath(), 0o644)) }, 2},                  //nolint:thelper // a step
		"a damaged file":        {func(t *testing.T, s *service) { assert.NoError(t, os.WriteFile(s.cachePath(), []byte("x"), 0o600)) }, 2}, //nolint:thelper // a step
		"a link": {func(t *testing.T, s *service) {
			assert.NoError(t, errors.Join(os.Rename(s.cachePath(), s.cachePath()+"2"), os.Symlink(s.cachePath()+"2", s.cachePath())))
		}, 2}, //nolint:thelper // a step
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			_, err := s.Obtain()
			assert.NoError(t, err)
			c.before(t, s)
			got, err := s.Obtain()
			assert.NoError(t, err)
			assert.Equal(t, "logins", s.answers.Load(), c.logins)
			assert.True(t, got.User() == "unix:ann" && got.Namespace() == "user-ann", "%s in %s", got.User(), got.Namespace())
		})
	}
}

func (s *service) cachePath() string { return filepath.Join(s.RuntimeDir, cacheDir, cacheFile) }

// TestBusy checks that a client waits for its turn, and not for ever.
func TestBusy(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.busyFor = 3
	assert.NoError(t, assert.ErrorOf(s.Obtain()))
	assert.Equal(t, "requests", s.answers.Load(), 4)
	full := newService(t)
	full.busyFor = 1000
	assert.ErrorSays(t, "of a service that stays busy", assert.ErrorOf(full.Obtain()), "busy")
}

func TestObtainFails(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.refusing = "user ann is not in group drover"
	assert.ErrorSays(t, "of the service", assert.ErrorOf(s.Obtain()), "user ann is not in group drover")
	assert.NoError(t, os.Remove(SocketPath(s.Dir)))
	assert.ErrorSays(t, "without a service", assert.ErrorOf(s.Obtain()), "the Drover service of this host does not answer")
	assert.NoError(t, os.Chmod(KubeconfigPath(s.Dir), 0o666))
	assert.ErrorSays(t, "of a file of others", assert.ErrorOf(s.Obtain()), "only root may be able to write it")
	assert.NoError(t, os.Remove(KubeconfigPath(s.Dir)))
	assert.ErrorSays(t, "without a file", assert.ErrorOf(s.Obtain()), "no Drover service lets users of this host log in")
}

// TestPersonalKubeconfig checks what clients of Kubernetes read, and that they get no key by a file.
func TestPersonalKubeconfig(t *testing.T) { //nolint:paralleltest // it changes the environment
	t.Setenv("NO_PROXY", "")
	s := newService(t)
	path, err := s.PersonalKubeconfig()
	assert.NoError(t, err)
	config, err := clientcmd.LoadFromFile(path)
	assert.NoError(t, err)
	now, user := config.Contexts[config.CurrentContext], config.AuthInfos["drover"]
	assert.Equal(t, "namespace", now.Namespace, "user-ann")
	assert.Equal(t, "server", config.Clusters[now.Cluster].Server, "https://127.0.0.1:6443")
	assert.True(t, user.Exec.Command == "/usr/bin/drover" && user.Exec.Args[0] == "login" && user.Exec.Env[0].Value == s.Dir, "%v", user.Exec)
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	assert.True(t, !bytes.Contains(content, []byte("KEY")), "%s", content)
}

// TestRun checks what drover login prints for clients of Kubernetes and for people.
func TestRun(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var program, person bytes.Buffer
	assert.NoError(t, Run(s.Client, func(string) string { return "{}" }, &program))
	assert.NoError(t, Run(s.Client, func(string) string { return "" }, &person))
	var got execCredential
	assert.NoError(t, json.Unmarshal(program.Bytes(), &got))
	_, err := parseCredentials([]byte(got.Status.ClientCertificateData), []byte(got.Status.ClientKeyData))
	assert.NoError(t, err)
	assert.Equal(t, "kind", got.APIVersion+" "+got.Kind, "client.authentication.k8s.io/v1 ExecCredential")
	assert.Contains(t, "for people", person.String(), "Logged in as unix:ann until ")
	assert.True(t, !bytes.Contains(person.Bytes(), []byte("KEY")), "it shows the key")
}
