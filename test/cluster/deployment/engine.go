// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"crypto"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster"
	"cloudnative.tw/drover/test/framework"
)

const enginePort = "2376"

// Engine is another Docker Engine on this host. It listens at a socket, and with TLS at one
// address. It does not change the host's network, as its containers are without a network.
type Engine struct {
	// Client is connected to the engine with TLS, like its clients in the cluster.
	Client *client.Client
	// URL is the engine's address, tcp://HOST:PORT.
	URL string
	// Socket is the path of the engine's socket for programs on this host.
	Socket string
	// Certificates is a folder with ca.pem, cert.pem and key.pem of a client.
	Certificates string
}

// StartEngine starts an engine that listens at the host's address in a cluster. The engine ends
// with the test, including all its processes and mounts. Its files and its containers' control
// groups are removed with those of the cluster, even if the test is killed.
func StartEngine(t testing.TB, c *cluster.Cluster) *Engine {
	t.Helper()
	address, dir := c.HostIP(), filepath.Join(c.Dir, "engine")
	e := &Engine{
		URL: "tcp://" + net.JoinHostPort(address, enginePort), Socket: filepath.Join(dir, "docker.sock"), Certificates: filepath.Join(dir, "client"),
	}
	server := writeCertificates(t, dir, address)
	process := e.startProcess(t, append([]string{
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--cgroup-parent", c.ControlGroup("engine"), "--storage-driver", "vfs",
	}, server...))
	t.Cleanup(func() { endEngine(t, process) })
	e.connect(t)
	return e
}

// startProcess runs dockerd as the first process of a PID namespace, so that its containers
// and mounts end with it. It has a separate network namespace, because an engine without a
// bridge would remove the bridge of another engine. Therefore it inherits its listeners. Only
// the address uses TLS.
func (e *Engine) startProcess(t testing.TB, args []string) *framework.Process {
	t.Helper()
	address, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", strings.TrimPrefix(e.URL, "tcp://"))
	assert.NoError(t, err)
	socket, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", e.Socket)
	assert.NoError(t, err)
	socket.(*net.UnixListener).SetUnlinkOnClose(false)
	var files []*os.File
	for _, listener := range []net.Listener{address, socket} {
		file, err := listener.(interface{ File() (*os.File, error) }).File()
		assert.NoError(t, errors.Join(err, listener.Close()))
		defer func() { _ = file.Close() }()
		files = append(files, file)
	}
	// containerd writes its stacks to TMPDIR when dockerd finds it slow.
	process, err := framework.StartProcessWithFiles(files, "unshare", append([]string{
		"--net", "--pid", "--mount", "--propagation", "private", "--fork", "--kill-child", "--mount-proc",
		"dockerd", "--host", "fd://", "--bridge=none", "--iptables=false", "--ip6tables=false",
	}, args...), []string{"LISTEN_PID=1", "LISTEN_FDS=2", "TMPDIR=" + filepath.Dir(e.Socket)})
	assert.NoError(t, err)
	return process
}

func endEngine(t testing.TB, process *framework.Process) {
	t.Helper()
	if t.Failed() {
		t.Logf("dockerd printed:\n%s", process.Output())
	}
	assert.ReportError(t, process.Kill())
}

// connect waits until the engine answers.
func (e *Engine) connect(t testing.TB) {
	t.Helper()
	c, err := client.New(client.WithHost(e.URL), client.WithTLSClientConfig(
		filepath.Join(e.Certificates, "ca.pem"), filepath.Join(e.Certificates, "cert.pem"), filepath.Join(e.Certificates, "key.pem")))
	assert.NoError(t, err)
	assert.Eventually(t, "the engine to answer", func(t testing.TB) error {
		_, err := c.Ping(t.Context(), client.PingOptions{})
		return err
	})
	e.Client = c
}

// writeCertificates writes the client's files, and returns the flags for the files of the engine.
func writeCertificates(t testing.TB, dir, address string) []string {
	t.Helper()
	// The first certificate is the server's, the second that of its authority.
	server, serverKey, err := certutil.GenerateSelfSignedCertKey(address, []net.IP{net.ParseIP(address)}, nil)
	assert.NoError(t, err)
	keyPEM, err := keyutil.MakeEllipticPrivateKeyPEM()
	assert.NoError(t, err)
	authorityKey, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	assert.NoError(t, err)
	signer, ok := authorityKey.(crypto.Signer)
	assert.Require(t, ok, "the key is a %T", authorityKey)
	authority, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "engine-clients"}, signer)
	assert.NoError(t, err)
	encoded, err := certutil.EncodeCertificates(authority)
	assert.NoError(t, err)
	user, userKey := framework.SignCertificate(t, "drover", time.Now().Add(24*time.Hour), authority, authorityKey)
	for name, content := range map[string][]byte{
		"server/cert.pem": server, "server/key.pem": serverKey, "server/ca.pem": encoded,
		"client/ca.pem": server, "client/cert.pem": user, "client/key.pem": userKey,
	} {
		writeFile(t, filepath.Join(dir, name), content)
	}
	path := func(name string) string { return filepath.Join(dir, "server", name) }
	return []string{"--tlsverify", "--tlscacert", path("ca.pem"), "--tlscert", path("cert.pem"), "--tlskey", path("key.pem")}
}

func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()
	assert.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.NoError(t, os.WriteFile(path, content, 0o600))
}
