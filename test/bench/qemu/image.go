// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/prometheus/procfs"
	"k8s.io/client-go/tools/remotecommand"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/supervisor"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// startRatio bounds the time to the first line of an image's machine, in multiples of that of QEMU alone.
	startRatio = 1.25
	// execAim bounds the duration of a command that does nothing, in ms.
	execAim = 25
	// execsATurn is the number of commands in a turn, and transferred the size of input and output.
	execsATurn  = 10
	transferred = 16 << 20
)

// imageBench is a benchmark of a container image that a separate registry serves.
type imageBench struct {
	*benchmark
	// sent is how many bytes of layers the registry has sent.
	sent *atomic.Int64
}

// measureImage measures an image that prints a line and waits.
func measureImage(ctx context.Context, r *bench.Report) error {
	made, err := busyBoxImage(ctx, v1.Config{Entrypoint: []string{"sh", "-c", "echo started; exec sleep 1000000"}})
	if err != nil {
		return err
	}
	return inDroverUp(ctx, r, made, (*imageBench).measure)
}

// busyBoxImage returns an image of BusyBox and further layers.
func busyBoxImage(ctx context.Context, config v1.Config, layers ...[]byte) (v1.Image, error) {
	layer, err := framework.BusyBoxLayer(ctx)
	if err != nil {
		return nil, err
	}
	return framework.LayersImage(config, append([][]byte{layer}, layers...)...)
}

// inDroverUp runs a measurement with drover up, including the controller, and VMs of a container image.
func inDroverUp(ctx context.Context, r *bench.Report, made v1.Image, measure func(*imageBench, context.Context) error) error {
	guest, err := framework.BuildImageGuest()
	if err != nil {
		return err
	}
	sent := &atomic.Int64{}
	server := framework.StartRegistry(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(countLayers(w, r, sent), r) })
	})
	defer server.Close()
	host := server.Listener.Addr().String()
	image := host + "/image:1"
	reference, err := name.ParseReference(image)
	if err != nil {
		return err
	}
	if err := remote.Write(reference, made, remote.WithContext(ctx)); err != nil {
		return err
	}
	options := framework.ClusterOptions{WithController: true, Args: []string{
		"--vm-driver=qemu", "--image-hosts=127.0.0.1", "--image-plain-http-registries=" + host, "--qemu-unchecked-images", "--qemu-kernel=" + filepath.Dir(guest.Kernel),
	}}
	return bench.In(options, func(ctx context.Context, e *bench.Environment) (err error) {
		b := &imageBench{&benchmark{Environment: e, engine: filepath.Join(e.DataDir, "drivers", "qemu")}, sent}
		b.quiet = func(ctx context.Context) error { return bench.AwaitQuiet(ctx, e.PID()) }
		defer func() { err = errors.Join(err, killProcessesIn(b.Temp), killProcessesIn(b.engine)) }()
		b.VMs.New = func(name string) *api.VirtualMachine {
			return framework.NewVM(name).Namespace("").Image(image).Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "128Mi").Obj()
		}
		if b.log, err = bench.StartLog[*api.VirtualMachine](ctx, bench.WatchVMs(b.VMs)); err != nil {
			return err
		}
		return measure(b, ctx)
	})(ctx, r)
}

// countLayers returns a ResponseWriter that counts the bytes of layers.
func countLayers(w http.ResponseWriter, r *http.Request, sent *atomic.Int64) http.ResponseWriter {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		return w
	}
	return counted{w, sent}
}

type counted struct {
	http.ResponseWriter

	sent *atomic.Int64
}

// Write implements io.Writer.
func (c counted) Write(p []byte) (int, error) {
	c.sent.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func (b *imageBench) measure(ctx context.Context) error {
	m, err := b.newModel(ctx)
	if err != nil {
		return err
	}
	sent, stored := b.sent.Load(), b.storedBytes()
	ours, alone, err := b.takeTurns(ctx, m)
	if err != nil {
		return err
	}
	b.AddRow("apply to Active", 1, "ms", ours.up...).CompareWith("start to an answer by QMP", alone.up...)
	b.AddRow("apply to the entrypoint's first line", 1, "ms", ours.output...).CompareWith("start to that line", alone.output...).RatioAtMost(startRatio)
	b.AddRow("sent and stored for the image's first VM", 1, "MB", bench.Megabytes(uint64(sent+stored))) //nolint:gosec // positive
	b.AddRow("sent and stored for its next VMs", b.Turns, "bytes", float64(b.sent.Load()-sent), float64(b.storedBytes()-stored)).PercentileAtMost(100, 0)
	vm, _, _, err := b.startByDrover(ctx, "commands")
	if err != nil {
		return err
	}
	d, _, _, err := b.startDirectly(ctx, m, b.Turns)
	if err != nil {
		return err
	}
	err = b.reportMemory(vm, d)
	if err == nil {
		err = b.compareCommands(ctx, vm, d)
	}
	return errors.Join(err, d.end(), b.deleteVM(ctx, vm.Name))
}

// storedBytes returns the size of the image store on the disk.
func (b *imageBench) storedBytes() (sum int64) {
	_ = filepath.WalkDir(filepath.Join(b.engine, "cache"), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().IsRegular() {
			sum += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	return sum
}

// reportMemory compares the memory of a machine with that of QEMU alone.
func (b *imageBench) reportMemory(vm *api.VirtualMachine, d *direct) error {
	qemu, err := b.qemuOf(vm)
	if err != nil {
		return err
	}
	supervisor, err := supervisorOf(vm)
	if err != nil {
		return err
	}
	var figures []bench.Memory
	for _, pid := range []int{qemu.PID, d.cmd.Process.Pid, supervisor.PID} {
		m, err := bench.MemoryOf(pid)
		if err != nil {
			return err
		}
		figures = append(figures, m)
	}
	own := func(n int) float64 { return bench.Megabytes(figures[n].Anonymous) }
	b.AddRow("memory of QEMU, the guest's included", 1, "MB", own(0)).CompareWith("QEMU alone", own(1))
	b.AddRow("resident memory of its supervisor", 1, "MB", bench.Megabytes(figures[2].Resident))
	b.AddRow("anonymous memory of its supervisor", 1, "MB", own(2))
	return nil
}

// supervisorOf finds the supervisor of a VM's machine.
func supervisorOf(vm *api.VirtualMachine) (procfs.Proc, error) {
	all, err := procfs.AllProcs()
	for _, p := range all {
		args, _ := p.CmdLine()
		if slices.Contains(args, supervisor.FollowCommand) && strings.Contains(strings.Join(args, " "), string(vm.UID)) {
			return p, nil
		}
	}
	return procfs.Proc{}, errors.Join(err, fmt.Errorf("no process follows the machine of %s", vm.UID))
}

// runCommand runs a command in a machine. It returns an error if the command fails.
type runCommand func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error

// compareCommands runs commands alternately through the API and directly through the guest's agent.
func (b *imageBench) compareCommands(ctx context.Context, vm *api.VirtualMachine, d *direct) error {
	byAPI, err := b.runByAPI(ctx, vm)
	if err != nil {
		return err
	}
	byAgent, stop, err := runByAgent(ctx, d.dir)
	if err != nil {
		return err
	}
	defer stop()
	var ours, alone commands
	if err := bench.TakeTurns(b.Turns, func(int) error { return ours.measure(ctx, byAPI) }, func(int) error { return alone.measure(ctx, byAgent) }); err != nil {
		return err
	}
	const agent = "by the agent of QEMU alone"
	b.AddRow("exec true, by the API", 1, "ms", ours.trues...).CompareWith(agent, alone.trues...).AtMost(execAim)
	b.AddRow("output of a command", 1, "MB/s", ours.out...).CompareWith(agent, alone.out...)
	b.AddRow("input of a command", 1, "MB/s", ours.in...).CompareWith(agent, alone.in...)
	return nil
}

// commands has the durations of a command that does nothing, in ms, and the speeds of output and input, in MB/s.
type commands struct{ trues, out, in []float64 }

func (c *commands) measure(ctx context.Context, run runCommand) error {
	for n := range execsATurn + 1 {
		begin := time.Now()
		if err := run(ctx, nil, io.Discard, "true"); err != nil {
			return err
		}
		if n > 0 { // the first one fills caches
			c.trues = append(c.trues, bench.Milliseconds(time.Since(begin)))
		}
	}
	speed := func(begin time.Time) float64 { return bench.Megabytes(transferred) / time.Since(begin).Seconds() }
	begin, received := time.Now(), &bytes.Buffer{}
	if err := run(ctx, nil, received, "head", "-c", fmt.Sprint(transferred), "/dev/zero"); err != nil {
		return err
	}
	if received.Len() != transferred {
		return fmt.Errorf("%d bytes of output came, of %d", received.Len(), transferred)
	}
	c.out = append(c.out, speed(begin))
	begin = time.Now()
	if err := run(ctx, bytes.NewReader(make([]byte, transferred)), io.Discard, "sh", "-c", fmt.Sprintf("test $(cat | wc -c) = %d", transferred)); err != nil {
		return err
	}
	c.in = append(c.in, speed(begin))
	return nil
}

// runByAPI runs commands in a VM as kubectl vm exec does.
func (b *imageBench) runByAPI(ctx context.Context, vm *api.VirtualMachine) (runCommand, error) {
	c, err := streams.Discover(ctx, b.Config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
		query := url.Values{"command": args, "stdout": {"true"}, "stdin": {fmt.Sprint(stdin != nil)}}
		return c.Connect(ctx, c.URL(vm.Namespace, vm.Name, streamsapi.Exec, query), remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout})
	}, nil
}

// runByAgent runs commands in a machine that was started directly, through a connection to its agent.
func runByAgent(ctx context.Context, dir string) (run runCommand, stop func(), err error) {
	text, err := os.ReadFile(filepath.Join(dir, "memfd:config"))
	if err != nil {
		return nil, nil, err
	}
	configured, err := config.Decode(text)
	if err != nil {
		return nil, nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, machine.AgentSocket))
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(ctx, conn, configured.Nonce)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error {
		exit, err := c.Exec(ctx, client.Command{Exec: wire.Exec{Args: args}, Stdin: stdin, Stdout: stdout, Stderr: io.Discard})
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("%q ended with code %d", args, exit.Code)
		}
		return err
	}, func() { _ = c.Close() }, nil
}
