// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestKill9LosesNothingAcknowledged checks that all acknowledged writes survive a crash, on
// a disk of the usual kind.
func TestKill9LosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	c := framework.StartCluster(t, framework.ClusterOptions{Durable: true})
	host := c.Config.Host
	client := clientFor(t, c.Config)
	acknowledged := make(chan string, 10000)
	go func() {
		defer close(acknowledged)
		for i := 0; ; i++ {
			name := "n" + strconv.Itoa(i)
			if _, err := client.CoreV1().ConfigMaps("default").Create(context.Background(), newConfigMap(name), metav1.CreateOptions{}); err != nil {
				return
			}
			acknowledged <- name
		}
	}()
	assert.Eventually(t, "objects are created", func(testing.TB) error {
		if len(acknowledged) < 50 {
			return fmt.Errorf("only %d", len(acknowledged))
		}
		return nil
	})
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if c.Config.Host != host {
		t.Errorf("moved from %s to %s", host, c.Config.Host)
	}
	client = clientFor(t, c.Config)
	for name := range acknowledged {
		if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// TestSIGTERMStopsInTimeWithWatchesOpen uses watches, which delay the stop of a
// kube-apiserver by up to a minute.
func TestSIGTERMStopsInTimeWithWatchesOpen(t *testing.T) {
	t.Parallel()
	c := framework.StartCluster(t, framework.ClusterOptions{})
	client := clientFor(t, c.Config)
	for range 5 {
		w, err := client.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
	}
	begin := time.Now()
	if err := c.Stop(); err != nil { // Stop requires exit code 0
		t.Error(err)
	}
	if took := time.Since(begin); took > 30*time.Second { // half of that minute, on a host however busy
		t.Errorf("took %s", took)
	}
	out := c.Output()
	order := []string{"kube-controller-manager  stopped", "kube-apiserver           stopped", "etcd                     stopped"}
	for _, line := range order {
		_, rest, found := strings.Cut(out, line)
		if !found {
			t.Fatalf("%q is missing or out of order in\n%s", line, c.Output())
		}
		out = rest
	}
	if _, err := os.Stat(filepath.Join(c.DataDir, "run", "ready")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still said to be ready: %v", err)
	}
}

func TestSecondCtrlCEndsImmediately(t *testing.T) {
	t.Parallel()
	c := framework.StartCluster(t, framework.ClusterOptions{})
	// An open watch makes the first one take a second or more.
	w, err := clientFor(t, c.Config).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := syscall.Kill(c.PID(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	assert.Eventually(t, "it stops", func(testing.TB) error {
		if !strings.Contains(c.Output(), "Stopping") {
			return errors.New("it does not")
		}
		return nil
	})
	err = c.Stop() // the second signal
	if err == nil || !strings.Contains(err.Error(), "exit status 130") {
		t.Errorf("ended with %v", err)
	}
}

func TestCtrlCWhileStarting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := framework.StartProcess(droverBinary(t), []string{"up", "--data-dir", dir, "--port", "0", "--without-controller"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	assert.Eventually(t, "it starts", func(testing.TB) error {
		if !strings.Contains(p.Output(), "etcd ") {
			return errors.New("no etcd yet")
		}
		return nil
	})
	if err := p.Stop(); err != nil {
		t.Errorf("%v\n%s", err, p.Output())
	}
	assertStarts(t, dir)
}

// assertStarts checks that the data dir that an earlier run left is usable.
func assertStarts(t *testing.T, dir string) {
	t.Helper()
	framework.StartCluster(t, framework.ClusterOptions{DataDir: dir})
}

// TestCrashBeforeEtcdIsAMember covers a log that exists without the entry that makes etcd a
// member of its own cluster.
func TestCrashBeforeEtcdIsAMember(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	member := filepath.Join(dir, "etcd", "member")
	if err := errors.Join(os.MkdirAll(filepath.Join(member, "snap"), 0o700), os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	metadata, err := (&etcdserverpb.Metadata{NodeID: 1, ClusterID: 2}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	log, err := wal.Create(zap.NewNop(), filepath.Join(member, "wal"), metadata)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	assertStarts(t, dir)
}

func TestCrashesDuringTheFirstStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	for _, milliseconds := range []int{20, 60, 120, 250, 500, 1000, 1800} {
		after := time.Duration(milliseconds) * time.Millisecond
		p, err := framework.StartProcess(droverBinary(t), []string{"up", "--data-dir", dir, "--port", "0", "--without-controller"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		// The moment of the crash is under test; there is nothing to wait for.
		time.Sleep(after)
		if err := p.Kill(); err != nil {
			t.Fatalf("after %s: %v\n%s", after, err, p.Output())
		}
	}
	assertStarts(t, dir)
}

func TestSecondInstanceIsRefused(t *testing.T) {
	t.Parallel()
	got := runDrover(t, "", nil, "up", "--data-dir", shared.DataDir, "--port", "0")
	want := fmt.Sprintf("drover: data dir %s is in use by drover (pid %d)", shared.DataDir, shared.PID())
	assertRefused(t, got, want)
	if _, err := clientFor(t, shared.Config).Discovery().ServerVersion(); err != nil {
		t.Errorf("the first instance: %v", err)
	}
}

// assertRefused requires one clear line and an exit code other than 0.
func assertRefused(t *testing.T, got commandResult, want string) {
	t.Helper()
	if got.code != 1 || len(nonEmptyLines(got.errOut)) != 1 || !strings.HasPrefix(got.errOut, want) {
		t.Errorf("code %d, printed %q and %q; want %q", got.code, got.out, got.errOut, want)
	}
}

func TestStartErrorsAreOneLine(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(shared.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "letter"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"port in use":      {[]string{"--port", u.Port()}, "drover: port " + u.Port() + " on 127.0.0.1 is in use by another program"},
		"no address":       {[]string{"--bind-address", "here"}, `drover: --bind-address "here" is no IP address`},
		"nothing writable": {[]string{"--data-dir", "/proc/drover"}, "drover: "},
		"foreign folder":   {[]string{"--data-dir", foreign}, "drover: " + foreign + " is not empty and is no Drover data dir"},
		"unknown driver":   {[]string{"--vm-driver", "vmware"}, "drover: --vm-driver is \"vmware\""},
		"unknown flag":     {[]string{"--colour"}, "drover: unknown flag: --colour"},
		"no threads":       {[]string{"--threads", "0"}, "drover: --threads is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"up", "--data-dir", filepath.Join(t.TempDir(), "data")}, tc.args...)
			assertRefused(t, runDrover(t, "", nil, args...), tc.want)
		})
	}
}

func TestStoredPortInUse(t *testing.T) {
	t.Parallel()
	c := framework.StartCluster(t, framework.ClusterOptions{})
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(c.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	got := runDrover(t, "", nil, "up", "--data-dir", c.DataDir, "--without-controller")
	assertRefused(t, got, "drover: port "+u.Port()+" on 127.0.0.1 is in use by another program")
}

// TestFullDisk checks that neither a small disk at the start nor one that fills up
// later ends in a Go stack trace. A separate file system needs root.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	t.Run("at the start", func(t *testing.T) {
		dir := mountTmpfs(t, 100)
		got := runDrover(t, "", nil, "up", "--data-dir", filepath.Join(dir, "data"), "--port", "0", "--without-controller")
		assertRefused(t, got, "drover: the disk of "+dir)
	})
	t.Run("while it runs", func(t *testing.T) {
		dir := mountTmpfs(t, 400)
		c, err := framework.NewCluster(framework.ClusterOptions{DataDir: filepath.Join(dir, "data")})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Kill() }()
		fillDisk(t, filepath.Join(dir, "fill"))
		object := newConfigMap("large")
		object.BinaryData = map[string][]byte{"zero": make([]byte, 700_000)}
		client := clientFor(t, c.Config)
		assert.Eventually(t, "the disk is full", func(t testing.TB) error {
			object.Name += "x"
			if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), object.DeepCopy(), metav1.CreateOptions{}); err == nil {
				return errors.New("there was room")
			}
			return nil
		})
		want := "drover: etcd gave up: the disk of data dir " + c.DataDir + " is full"
		assert.Eventually(t, "it says so", func(testing.TB) error {
			if !strings.Contains(c.Output(), want) {
				return errors.New(c.Output())
			}
			return nil
		})
		if strings.Contains(c.Output(), "goroutine") {
			t.Error(c.Output())
		}
	})
}

func mountTmpfs(t *testing.T, megabytes int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a file system of its own needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Skipf("a file system of its own cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk leaves no free space on the file's disk.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for block := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

func TestLongDataDirPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-", 40), strings.Repeat("deep/", 20), "data")
	c := framework.StartCluster(t, framework.ClusterOptions{DataDir: dir})
	createConfigMap(t, clientFor(t, c.Config), "default", newConfigMap("there"))
}

// TestCertificatesAreRenewedWhileItRuns checks that certificates are renewed while Drover
// runs, and that their users notice. Here they are lost, which is repaired the same way.
func TestCertificatesAreRenewedWhileItRuns(t *testing.T) {
	t.Parallel()
	c := framework.StartCluster(t, framework.ClusterOptions{})
	waitForServiceAccount(t, c)
	before := servedCertificate(t, c)
	old, err := os.ReadFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"serving.pem", "admin.pem", "controller-manager.pem"} {
		if err := os.Remove(filepath.Join(c.DataDir, "pki", file)); err != nil {
			t.Fatal(err)
		}
	}
	assert.Eventually(t, "the kubeconfig has the new certificate", func(testing.TB) error {
		if now, err := os.ReadFile(c.Kubeconfig); err != nil || bytes.Equal(old, now) {
			return errors.Join(errors.New("it has the old one"), err)
		}
		return nil
	})
	assert.Eventually(t, "the API shows the new certificate", func(t testing.TB) error {
		if servedCertificate(t, c).Equal(before) {
			return errors.New("it shows the old one")
		}
		return nil
	})
	waitForServiceAccount(t, c)
	kubectl := runDrover(t, "", nil, "kubectl", "--kubeconfig", c.Kubeconfig, "get", "namespace", "default", "-o", "name")
	if kubectl.code != 0 || kubectl.out != "namespace/default\n" {
		t.Errorf("kubectl: %+v", kubectl)
	}
}

// waitForServiceAccount checks that kube-controller-manager works.
func waitForServiceAccount(t *testing.T, c *framework.Cluster) {
	t.Helper()
	client := clientFor(t, c.Config)
	ns := newNamespace(t, client)
	assert.Eventually(t, "the namespace has its service account", func(t testing.TB) error {
		_, err := client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

func servedCertificate(t *testing.T, c *framework.Cluster) *x509.Certificate {
	t.Helper()
	u, err := url.Parse(c.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.Config.CAData)
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	conn, err := dialer.DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	secured, ok := conn.(*tls.Conn)
	if !ok {
		t.Fatal("no TLS")
	}
	return secured.ConnectionState().PeerCertificates[0]
}

// TestStartRepairsFiles checks that the next start recreates damaged certificates and
// a damaged kubeconfig.
func TestStartRepairsFiles(t *testing.T) {
	t.Parallel()
	c := framework.StartCluster(t, framework.ClusterOptions{})
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"kubeconfig", "pki/serving.pem", "pki/admin.pem", "pki/ca.crt"} {
		if err := os.WriteFile(filepath.Join(c.DataDir, file), []byte("half a fi"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := clientFor(t, c.Config).Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}
}
