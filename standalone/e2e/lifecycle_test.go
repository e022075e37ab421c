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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// TestLife follows one data dir from the first start to the last end, since starts are the costly
// part of tests here. Its path is longer than the path of a socket may be.
func TestLife(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-", 40), strings.Repeat("deep/", 20), "data")
	makeLogWithoutMember(t, dir)
	c := framework.StartCluster(t, framework.ClusterOptions{DataDir: dir, Durable: true})
	checkCertificatesAreRenewed(t, c)
	checkUserRoles(t, c)

	damageUserRoles(t, c)
	unenforced := makeUnenforced(t, c)
	checkNothingAcknowledgedIsLost(t, c)
	checkUserRoles(t, c)
	checkUnenforced(t, c, unenforced)
	checkDoctorOfAPI(t, c)

	checkStopWithWatchesOpen(t, c)
	checkStoredPortInUse(t, c)
	checkStartRepairsFiles(t, c)
	checkSecondCtrlCEndsImmediately(t, c)
}

// makeLogWithoutMember makes the data dir of a first start that was killed before the log had the
// entry that makes etcd a member of its cluster.
func makeLogWithoutMember(t *testing.T, dir string) {
	t.Helper()
	member := filepath.Join(dir, "etcd", "member")
	assert.NoError(t, errors.Join(os.MkdirAll(filepath.Join(member, "snap"), 0o700), os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600)))
	metadata, err := (&etcdserverpb.Metadata{NodeID: 1, ClusterID: 2}).Marshal()
	assert.NoError(t, err)
	log, err := wal.Create(zap.NewNop(), filepath.Join(member, "wal"), metadata)
	assert.NoError(t, err)
	assert.NoError(t, log.Close())
}

// checkNothingAcknowledgedIsLost kills Drover during writes, which survive once they are
// acknowledged, on a disk of the usual kind.
func checkNothingAcknowledgedIsLost(t *testing.T, c *framework.Cluster) {
	t.Helper()
	host, objects := c.Config.Host, objectsFor(t, c.Config)
	acknowledged := make(chan string, 10000)
	go func() {
		defer close(acknowledged)
		for i := 0; ; i++ {
			name := "n" + strconv.Itoa(i)
			if err := objects.Create(context.Background(), newConfigMap("default", name)); err != nil {
				return
			}
			acknowledged <- name
		}
	}()
	assert.Eventually(t, "objects are created", func(testing.TB) error {
		return assert.ErrorUnless(len(acknowledged) >= 50, "only %d", len(acknowledged))
	})
	assert.NoError(t, errors.Join(c.Kill(), c.Start()))
	assert.Equal(t, "moved from "+host+" to", c.Config.Host, host)
	var list corev1.ConfigMapList
	assert.NoError(t, objectsFor(t, c.Config).List(t.Context(), &list, client.InNamespace("default")))
	there := map[string]bool{}
	for _, object := range list.Items {
		there[object.Name] = true
	}
	for name := range acknowledged {
		assert.True(t, there[name], "%s was acknowledged, and is lost", name)
	}
}

// checkStopWithWatchesOpen stops Drover beside watches, which delay the stop of a kube-apiserver by
// up to a minute: this one would be left behind then.
func checkStopWithWatchesOpen(t *testing.T, c *framework.Cluster) {
	t.Helper()
	openWatches(t, c, 5)
	assert.NoError(t, c.Stop()) // which requires exit code 0
	out := c.Output()
	for _, line := range []string{"kube-controller-manager  stopped", "kube-apiserver           stopped", "etcd                     stopped"} {
		_, rest, found := strings.Cut(out, line)
		assert.Require(t, found, "%q is missing or out of order in\n%s", line, c.Output())
		out = rest
	}
	assert.ErrorIs(t, "the mark that it is ready", assert.ErrorOf(os.Stat(filepath.Join(c.DataDir, "run", "ready"))), os.ErrNotExist)
}

func openWatches(t *testing.T, c *framework.Cluster, count int) {
	t.Helper()
	for range count {
		w, err := objectsFor(t, c.Config).Watch(t.Context(), &corev1.ConfigMapList{})
		assert.NoError(t, err)
		t.Cleanup(w.Stop)
	}
}

// checkSecondCtrlCEndsImmediately sends two signals at once. The first alone would take the time of an open watch, and
// end with exit code 0.
func checkSecondCtrlCEndsImmediately(t *testing.T, c *framework.Cluster) {
	t.Helper()
	openWatches(t, c, 1)
	countStops := func() int { return strings.Count(c.Output(), "Stopping;") }
	before := countStops()
	assert.NoError(t, syscall.Kill(c.PID(), syscall.SIGTERM))
	assert.Eventually(t, "the stop begins", func(testing.TB) error { // of two signals at once, SIGINT comes first
		return assert.ErrorUnless(countStops() != before, "it does not stop")
	})
	assert.ErrorSays(t, "the stop", c.Interrupt(), "exit status 130")
}

// TestFirstStartIsInterrupted kills first starts at several moments, stops one by Ctrl-C, and
// checks that what they left is usable.
func TestFirstStartIsInterrupted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(framework.ShortTempDir(t), "data")
	start := func() *framework.Process {
		p, err := framework.StartProcess(droverBinary(t), []string{"up", "--data-dir", dir, "--port", "0", "--without-controller"}, nil)
		assert.NoError(t, err)
		return p
	}
	moments := []int{60, 500}
	if tier.IsFull() {
		moments = []int{20, 60, 120, 250, 500, 1000, 1800}
	}
	for _, milliseconds := range moments {
		p := start()
		// The moment of the crash is under test; there is nothing to wait for.
		time.Sleep(time.Duration(milliseconds) * time.Millisecond)
		err := p.Kill()
		assert.Require(t, err == nil, "after %d ms: %v\n%s", milliseconds, err, p.Output())
	}
	p := start()
	assert.Eventually(t, "it starts", func(testing.TB) error {
		return assert.ErrorUnless(strings.Contains(p.Output(), "etcd "), "no etcd yet")
	})
	err := p.Stop()
	assert.True(t, err == nil, "%v\n%s", err, p.Output())
	framework.StartCluster(t, framework.ClusterOptions{DataDir: dir})
}

// assertRefused requires one clear line and an exit code other than 0.
func assertRefused(t *testing.T, got commandResult, want string) {
	t.Helper()
	assert.True(t, got.code == 1 && len(nonEmptyLines(got.errOut)) == 1 && strings.HasPrefix(got.errOut, want),
		"code %d, printed %q and %q; want %q", got.code, got.out, got.errOut, want)
}

func TestStartErrorsAreOneLine(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(shared.Config.Host)
	assert.NoError(t, err)
	foreign := t.TempDir()
	assert.NoError(t, os.WriteFile(filepath.Join(foreign, "letter"), nil, 0o600))
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"data dir in use":  {[]string{"--data-dir", shared.DataDir}, fmt.Sprintf("drover: data dir %s is in use by drover (pid %d)", shared.DataDir, shared.PID())},
		"port in use":      {[]string{"--port", u.Port()}, "drover: port " + u.Port() + " on 127.0.0.1 is in use by another program"},
		"no address":       {[]string{"--bind-address", "here"}, `drover: --bind-address "here" is not an IP address`},
		"nothing writable": {[]string{"--data-dir", "/proc/drover"}, "drover: "},
		"foreign folder":   {[]string{"--data-dir", foreign}, "drover: " + foreign + " is not empty and not a Drover data dir"},
		"unknown driver":   {[]string{"--vm-driver", "vmware"}, "drover: --vm-driver is \"vmware\""},
		"unknown flag":     {[]string{"--colour"}, "drover: unknown flag: --colour"},
		"no threads":       {[]string{"--threads", "0"}, "drover: --threads is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"up", "--data-dir", filepath.Join(framework.ShortTempDir(t), "data")}, tc.args...)
			assertRefused(t, runDrover(t, "", nil, args...), tc.want)
		})
	}
}

func checkStoredPortInUse(t *testing.T, c *framework.Cluster) {
	t.Helper()
	u, err := url.Parse(c.Config.Host)
	assert.NoError(t, err)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", u.Host)
	assert.NoError(t, err)
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
		assert.NoError(t, err)
		defer func() { _ = c.Kill() }()
		fillDisk(t, filepath.Join(dir, "fill"))
		object := newConfigMap("default", "large")
		object.BinaryData = map[string][]byte{"zero": make([]byte, 700_000)}
		objects := objectsFor(t, c.Config)
		assert.Eventually(t, "the disk is full", func(t testing.TB) error {
			object.Name += "x"
			return assert.ErrorUnless(objects.Create(t.Context(), object.DeepCopy()) != nil, "there was room")
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
		t.Skip("the test mounts a file system, which needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Skipf("the test cannot mount a file system here: %v", err)
	}
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	return dir
}

// fillDisk leaves no free space on the file's disk.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	for block := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// checkCertificatesAreRenewed checks that certificates are renewed while Drover runs, and that
// their users notice. Here they are lost, which is repaired the same way.
func checkCertificatesAreRenewed(t *testing.T, c *framework.Cluster) {
	t.Helper()
	objects := objectsFor(t, c.Config)
	waitForServiceAccount(t, objects, newNamespace(t, objects))
	before := servedCertificate(t, c)
	for _, file := range []string{"serving.pem", "admin.pem", "controller-manager.pem"} {
		assert.NoError(t, os.Remove(filepath.Join(c.DataDir, "pki", file)))
	}
	renewCertificates(t, c, before)
	assert.Eventually(t, "the API shows the new certificate", func(t testing.TB) error {
		return assert.ErrorUnless(!servedCertificate(t, c).Equal(before), "it shows the old one")
	})
	waitForServiceAccount(t, objects, newNamespace(t, objects))
	kubectl := runDrover(t, "", nil, "kubectl", "--kubeconfig", c.Kubeconfig, "get", "namespace", "default", "-o", "name")
	assert.True(t, kubectl.code == 0 && kubectl.out == "namespace/default\n", "kubectl: %+v", kubectl)
}

// renewCertificates waits until Drover has renewed certificates, and has brought the kubeconfig in line.
// It looks once a minute, which is too long for the gate: there the files are renewed in its place.
func renewCertificates(t *testing.T, c *framework.Cluster, served *x509.Certificate) {
	t.Helper()
	if !tier.IsFull() {
		hosts := slices.Clone(served.DNSNames)
		for _, ip := range served.IPAddresses {
			hosts = append(hosts, ip.String())
		}
		_, err := (&pki.Store{Dir: filepath.Join(c.DataDir, "pki"), Clock: clock.RealClock{}, Hosts: func() []string { return hosts }}).Ensure()
		assert.NoError(t, err)
		return
	}
	old, err := os.ReadFile(c.Kubeconfig)
	assert.NoError(t, err)
	assert.Eventually(t, "the kubeconfig has the new certificate", func(testing.TB) error {
		if now, err := os.ReadFile(c.Kubeconfig); err != nil || bytes.Equal(old, now) {
			return errors.Join(errors.New("it has the old one"), err)
		}
		return nil
	})
}

func servedCertificate(t testing.TB, c *framework.Cluster) *x509.Certificate {
	t.Helper()
	u, err := url.Parse(c.Config.Host)
	assert.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.Config.CAData)
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	conn, err := dialer.DialContext(t.Context(), "tcp", u.Host)
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	secured, ok := conn.(*tls.Conn)
	assert.Require(t, ok, "no TLS")
	return secured.ConnectionState().PeerCertificates[0]
}

// checkStartRepairsFiles checks that the next start recreates damaged certificates and a damaged
// kubeconfig.
func checkStartRepairsFiles(t *testing.T, c *framework.Cluster) {
	t.Helper()
	for _, file := range []string{"kubeconfig", "pki/serving.pem", "pki/admin.pem", "pki/ca.crt"} {
		assert.NoError(t, os.WriteFile(filepath.Join(c.DataDir, file), []byte("half a fi"), 0o600))
	}
	assert.NoError(t, c.Start())
	_, err := clientFor(t, c.Config).Discovery().ServerVersion()
	assert.NoError(t, err)
}

// TestServiceManager checks that systemd is told once, and not before VirtualMachines are served.
func TestServiceManager(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	dir := t.TempDir()
	type message struct {
		text    string
		isReady error // of the file that shows that all is ready
	}
	messages := make(chan message, 10)
	go func() {
		defer close(messages)
		for buffer := make([]byte, 4096); ; {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			_, err = os.Stat(filepath.Join(dir, "run", "ready"))
			messages <- message{string(buffer[:n]), err}
		}
	}()
	t.Setenv("NOTIFY_SOCKET", socket)
	c := framework.StartCluster(t, framework.ClusterOptions{DataDir: dir, WithController: true, Args: []string{"--vm-driver", "fake"}})
	assert.NoError(t, c.Stop())
	assert.NoError(t, conn.Close())
	var got []message
	for m := range messages {
		got = append(got, m)
	}
	assert.Equal(t, "messages", fmt.Sprint(got), fmt.Sprint([]message{{text: "READY=1"}}))
}
