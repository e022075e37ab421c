// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// transferBytes is the size of a transfer, and requestCount the number of requests of a measurement.
	transferBytes = 48 << 20
	requestCount  = 200
	// answerTimeout is how long a guest may take to answer.
	answerTimeout = 30 * time.Second
	// userRatio is the least speed of the edge, Drover's network of a machine, in multiples of QEMU's user network's.
	userRatio = 0.9
	// restFor is how long a machine at rest is measured, and restPercent how much of a CPU its supervisor may use.
	restFor     = 10 * time.Second
	restPercent = 0.5
)

// measureNetwork compares the edge of a machine with QEMU's user network and with passt, with the same QEMU command line.
func measureNetwork(ctx context.Context, r *bench.Report) error {
	dir, err := os.MkdirTemp("", "drover-netload-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "netload")
	if err := framework.BuildStatic(program, "test/bench/qemu/netload"); err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := framework.MakeTar("bin/netload", content)
	if err != nil {
		return err
	}
	image, err := busyBoxImage(ctx, v1.Config{Entrypoint: []string{"netload", "serve"}, Env: []string{"PATH=/bin"}}, layer)
	if err != nil {
		return err
	}
	return inDroverUp(ctx, r, image, func(b *imageBench, ctx context.Context) error {
		return (&networkBench{imageBench: b, program: program}).measure(ctx)
	})
}

// networkBench is a benchmark of networks.
type networkBench struct {
	*imageBench
	// program is the path of netload, and outside the address at which it serves on another simulated host.
	program, outside string
}

// contender is a machine with one kind of network.
type contender struct {
	name string
	run  runCommand
	// port is the address that leads to the guest's port.
	port string
	// pids has QEMU's PID, and that of the network's process if there is one.
	pids []int

	figures map[string][]float64
}

func (b *networkBench) measure(ctx context.Context) (err error) {
	other, err := framework.OpenNetwork(ctx, 18)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.Close(context.WithoutCancel(ctx))) }()
	server := exec.Command("ip", "netns", "exec", other.Name, b.program, "serve") //nolint:noctx // it is killed
	if err := server.Start(); err != nil {
		return err
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	b.outside = other.Address + ":80"
	m, err := b.newModel(ctx)
	if err != nil {
		return err
	}
	bare := b.VMs.New
	b.VMs.New = func(name string) *api.VirtualMachine {
		vm := bare(name)
		vm.Spec.Ports = []api.Port{{Name: "load", Port: 80}}
		return vm
	}
	edge, vm, err := b.startEdge(ctx, "edge")
	if err != nil {
		return err
	}
	if err := b.reportEdge(ctx, "before any traffic", edge); err != nil {
		return err
	}
	contenders := []*contender{edge}
	for _, start := range []func(context.Context, model) (*contender, func() error, error){b.startUser, b.startPasst} {
		c, end, err := start(ctx, m)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		contenders = append(contenders, c)
	}
	if err := b.compare(ctx, contenders); err != nil {
		return err
	}
	if err := b.measurePeers(ctx, edge); err != nil {
		return err
	}
	return errors.Join(b.reportEdge(ctx, "after all traffic", edge), b.deleteVM(ctx, vm.Name))
}

// startEdge starts a machine with Drover.
func (b *networkBench) startEdge(ctx context.Context, name string) (*contender, *api.VirtualMachine, error) {
	vm, _, _, err := b.startByDrover(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	qemu, err := b.qemuOf(vm)
	if err != nil {
		return nil, nil, err
	}
	supervisor, err := supervisorOf(vm)
	if err != nil {
		return nil, nil, err
	}
	if vm, err = b.VMs.Get(ctx, vm.Name, metav1.GetOptions{}); err != nil {
		return nil, nil, err
	}
	if len(vm.Status.Ports) == 0 {
		return nil, nil, fmt.Errorf("VM %s lacks a port: %+v", vm.Name, vm.Status)
	}
	run, err := b.runByAPI(ctx, vm)
	if err != nil {
		return nil, nil, err
	}
	port := fmt.Sprintf("127.0.0.1:%d", vm.Status.Ports[0].HostPort)
	c := &contender{name: "edge", run: run, port: port, pids: []int{qemu.PID, supervisor.PID}}
	return c, vm, b.awaitGuest(ctx, c)
}

// startUser starts the model with QEMU's user network.
func (b *networkBench) startUser(ctx context.Context, m model) (*contender, func() error, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, nil, err
	}
	return b.startModel(ctx, m, 0, "user network", port, "user,id=net,hostfwd=tcp:"+port+"-:80")
}

// passtName is the name of passt in tables.
const passtName = "passt"

// startPasst starts the model with passt, which gives it a separate address.
func (b *networkBench) startPasst(ctx context.Context, m model) (*contender, func() error, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "passt-") // passt changes its user and must be able to write to it
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		return nil, nil, err
	}
	socket := filepath.Join(dir, "socket")
	passt := exec.Command("passt", "--foreground", "--quiet", "--ipv4-only", "--socket", socket, //nolint:noctx // it is killed
		"--address", "10.0.2.15", "--netmask", "24", "--gateway", "10.0.2.2", "--mtu", "1500", "--tcp-ports", strings.Replace(port, ":", "/", 1)+":80")
	if err := passt.Start(); err != nil {
		return nil, nil, err
	}
	endPasst := func() error {
		_ = passt.Process.Kill()
		_ = passt.Wait() // it was killed
		return os.RemoveAll(dir)
	}
	if _, err := bench.Poll(operationTimeout, func() error { _, err := os.Stat(socket); return err }); err != nil {
		return nil, nil, errors.Join(err, endPasst())
	}
	c, endQEMU, err := b.startModel(ctx, m, 1, passtName, port, "stream,id=net,server=off,addr.type=unix,addr.path="+socket)
	if err != nil {
		return nil, nil, errors.Join(err, endPasst())
	}
	c.pids = append(c.pids, passt.Process.Pid)
	return c, func() error { return errors.Join(endQEMU(), endPasst()) }, nil
}

// freePort returns an address with a free port.
func freePort(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// startModel starts the model with another network.
func (b *networkBench) startModel(ctx context.Context, m model, n int, name, port, netdev string) (*contender, func() error, error) {
	m.args = slices.Clone(m.args)
	m.args[slices.Index(m.args, "-netdev")+1] = netdev
	d, _, _, err := b.startDirectly(ctx, m, n)
	if err != nil {
		return nil, nil, err
	}
	run, stop, err := runByAgent(ctx, d.dir)
	if err != nil {
		return nil, nil, errors.Join(err, d.end())
	}
	c := &contender{name: name, run: run, port: port, pids: []int{d.cmd.Process.Pid}}
	end := func() error { stop(); return d.end() }
	err = run(ctx, nil, io.Discard, "sh", "-c", configure)
	if err == nil {
		err = b.awaitGuest(ctx, c)
	}
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return c, end, nil
}

// configure gives a guest the address of the user network if it lacks one: DHCP does not always work with passt.
const configure = `case $(ip addr show eth0) in *10.0.2.15*) ;; *) ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2;; esac`

// awaitGuest waits until the guest answers at its port.
func (b *networkBench) awaitGuest(ctx context.Context, c *contender) error {
	_, err := bench.Poll(answerTimeout, func() error { return b.runHere(ctx, nil, io.Discard, "netload", "ask", c.port, "1") })
	if err != nil {
		err = fmt.Errorf("the guest of %s does not answer: %w", c.name, err)
	}
	return err
}

// load is one measurement.
type load struct {
	what, unit string
	// fromHost says that the host connects to the guest's port. Otherwise the guest connects to the other host.
	fromHost bool
	command  string
	amount   int
}

var loads = []load{
	{"a guest's port sends", "MB/s", true, "down", transferBytes},
	{"a guest's port receives", "MB/s", true, "up", transferBytes},
	{"another host sends to a guest", "MB/s", false, "down", transferBytes},
	{"another host receives from a guest", "MB/s", false, "up", transferBytes},
	{"a request to a guest's port", "ms", true, "ask", requestCount},
	{"a connection and a request to a guest's port", "ms", true, "connect", requestCount},
	{"a request to another host", "ms", false, "ask", requestCount},
	{"a connection and a request to another host", "ms", false, "connect", requestCount},
}

// compare measures all loads with the contenders in turns.
func (b *networkBench) compare(ctx context.Context, contenders []*contender) error {
	for _, l := range loads {
		var turns []bench.Contender
		for _, c := range contenders {
			turns = append(turns, func(turn int) error {
				err := b.measureLoad(ctx, c, l)
				if err != nil && c.name == passtName && ctx.Err() == nil { // it sometimes stalls
					fmt.Fprintf(os.Stderr, "turn %d is left out: %v\n", turn+1, err)
					return nil
				}
				return err
			})
		}
		if err := bench.TakeTurns(b.Turns, turns...); err != nil {
			return err
		}
		edge := contenders[0]
		for _, c := range contenders[1:] {
			if len(c.figures[l.what]) == 0 {
				continue
			}
			row := b.AddRow(l.what, 1, l.unit, edge.figures[l.what]...).CompareWith(c.name, c.figures[l.what]...)
			if l.amount == transferBytes {
				if c == contenders[1] {
					row.RatioAtLeast(userRatio)
				}
				b.AddRow("CPU for this", 1, "s", edge.figures[cpuOf(l)]...).CompareWith(c.name, c.figures[cpuOf(l)]...)
			}
		}
		if l.amount == transferBytes {
			b.AddRow("CPU of the supervisor for this", 1, "s", edge.figures["network "+cpuOf(l)]...)
		}
	}
	return nil
}

// cpuOf returns the name of the CPU time of a load.
func cpuOf(l load) string { return "CPU: " + l.what }

// measureLoad measures one load once.
func (b *networkBench) measureLoad(ctx context.Context, c *contender, l load) error {
	ctx, cancel := context.WithTimeoutCause(ctx, operationTimeout, fmt.Errorf("%s by %s took longer than %s", l.what, c.name, operationTimeout))
	defer cancel()
	run, to := c.run, b.outside
	if l.fromHost {
		run, to = b.runHere, c.port
	}
	before, err := cpuTimes(c.pids)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := run(ctx, nil, &out, "netload", l.command, to, strconv.Itoa(l.amount)); err != nil {
		return fmt.Errorf("%s by %s: %w", l.what, c.name, errors.Join(err, context.Cause(ctx)))
	}
	figure, err := strconv.ParseFloat(strings.TrimSpace(out.String()), 64)
	if err != nil {
		return err
	}
	after, err := cpuTimes(c.pids)
	if err != nil {
		return err
	}
	if c.figures == nil {
		c.figures = map[string][]float64{}
	}
	all := 0.0
	for n := range after {
		all += after[n] - before[n]
	}
	c.figures[l.what], c.figures[cpuOf(l)] = append(c.figures[l.what], figure), append(c.figures[cpuOf(l)], all)
	if last := len(after) - 1; last > 0 {
		c.figures["network "+cpuOf(l)] = append(c.figures["network "+cpuOf(l)], after[last]-before[last])
	}
	return nil
}

// runHere runs netload on this host.
func (b *networkBench) runHere(ctx context.Context, _ io.Reader, stdout io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, b.program, args[1:]...)
	var errs strings.Builder
	cmd.Stdout, cmd.Stderr = stdout, &errs
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%q: %w: %s", args, err, errs.String())
	}
	return nil
}

// cpuTimes returns the CPU time of each process, in seconds.
func cpuTimes(pids []int) (all []float64, err error) {
	for _, pid := range pids {
		took, err := bench.CPUTime(pid)
		if err != nil {
			return nil, err
		}
		all = append(all, took.Seconds())
	}
	return all, nil
}

// measurePeers measures the network between two machines of Drover.
func (b *networkBench) measurePeers(ctx context.Context, edge *contender) error {
	other, vm, err := b.startEdge(ctx, "peer")
	if err != nil {
		return err
	}
	for _, l := range []load{
		{"a machine sends to another", "MB/s", false, "down", transferBytes},
		{"a machine receives from another", "MB/s", false, "up", transferBytes},
		{"a request to another machine", "ms", false, "ask", requestCount},
		{"a connection and a request to another machine", "ms", false, "connect", requestCount},
	} {
		b.outside = "peer:80"
		before, err := cpuTimes(slices.Concat(edge.pids, other.pids))
		if err != nil {
			return err
		}
		for range b.Turns {
			if err := b.measureLoad(ctx, edge, l); err != nil {
				return err
			}
		}
		after, err := cpuTimes(slices.Concat(edge.pids, other.pids))
		if err != nil {
			return err
		}
		b.AddRow(l.what, 2, l.unit, edge.figures[l.what]...)
		if l.amount == transferBytes {
			n := float64(b.Turns)
			b.AddRow("CPU of both QEMUs and both supervisors for this", 2, "s", (after[0]-before[0]+after[2]-before[2])/n, (after[1]-before[1]+after[3]-before[3])/n)
		}
	}
	return b.deleteVM(ctx, vm.Name)
}

// reportEdge reports the CPU time and the memory of a supervisor at rest.
func (b *networkBench) reportEdge(ctx context.Context, when string, edge *contender) error {
	before, err := cpuTimes(edge.pids)
	if err != nil {
		return err
	}
	if err := bench.Pause(ctx, restFor); err != nil {
		return err
	}
	after, err := cpuTimes(edge.pids)
	if err != nil {
		return err
	}
	m, err := bench.MemoryOf(edge.pids[1])
	if err != nil {
		return err
	}
	b.AddRow("CPU of the supervisor at rest "+when, 1, "% of a CPU", 100*(after[1]-before[1])/restFor.Seconds()).AtMost(restPercent)
	b.AddRow("resident memory of the supervisor "+when, 1, "MB", bench.Megabytes(m.Resident))
	b.AddRow("anonymous memory of the supervisor "+when, 1, "MB", bench.Megabytes(m.Anonymous))
	return nil
}
