// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program linux is the init of the Linux guest for tests: with a kernel of Debian's
// and a few of its modules it is the whole initramfs. hack/linux-guest.sh builds it.
//
// It counts its boots in the second sector of the first disk, prints "drover linux
// guest N is up" to the console, powers off at the power button, and serves on port
// 80. On port 7 it sends a line, and then back what it gets. If the first disk is an ext4 file system, it reports whether that was clean,
// mounts it, and changes it until it powers off. With serve=PROGRAM,ARGUMENT on the
// kernel's command line it has that program serve on port 80. Else it serves:
//
//	/        a report, as JSON: see report
//	/get?url=U  what the guest gets from another server; with keep=1 over the connection
//	            that the last one left, if there is one
//	/ping?to=H  pings a host
//	/burn    uses all CPU from now on
//	/eat?mib=N  allocates exactly that much memory
//	/panic   panics
//	/off     powers off without the button
//	/clock         says what time it is, in seconds since 1970; set=N sets its clock
//	/agent?mode=M  starts or stops the guest agent: see agent.go; agent=M on the
//	               kernel's command line does that at the boot
//	/processes     how many commands the guest agent runs
//
// With blocks=vda,vdb on the kernel's command line it writes blocks to these disks, to show
// what it has synced: see package blocks.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// report is the guest's report about itself.
type report struct {
	Boots     int               `json:"boots"`
	Cmdline   string            `json:"cmdline"`
	CPUs      int               `json:"cpus"`
	MemoryKiB uint64            `json:"memoryKiB"`
	Disks     map[string]disk   `json:"disks"` // by name, such as vda
	Seed      map[string]string `json:"seed"`  // the files of a cloud-init disk
	// PCI has the description of each device, by its address.
	PCI map[string]string `json:"pci"`
	// Network has the PCI address of each network interface, by its name.
	Network map[string]string `json:"network"`
}

type disk struct {
	Size     int64  `json:"size"`
	Serial   string `json:"serial"`
	ReadOnly bool   `json:"readOnly"`
}

func main() {
	if os.Getpid() != 1 {
		runProgram()
		return
	}
	logLine("mounts", mountFilesystems())
	loadModules("/modules")
	go powerButton()
	logLine("network", startNetwork())
	logLine("programs", installPrograms())
	boots, err := countBoot("/dev/vda")
	logLine("disk", err)
	logLine("file system", mountDisk("/dev/vda", "/disk"))
	r := newReport(boots)
	fmt.Printf("drover linux guest %d is up\n", boots)
	go func() { logLine("blocks", writeBlocks(r.Cmdline)) }()
	logLine("HTTP", serveHTTP(r))
	powerOff()
}

func logLine(action string, err error) {
	if err != nil {
		fmt.Printf("drover linux guest: %s: %v\n", action, err)
	}
}

func mountFilesystems() error {
	for _, m := range []struct{ kind, path string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := os.MkdirAll(m.path, 0o750); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.path, m.kind, 0, ""); err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
	}
	return nil
}

// loadModules retries until nothing else can be loaded: some modules need others.
func loadModules(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, "*.ko"))
	for before := -1; before != len(left); {
		before = len(left)
		var failed []string
		for _, path := range left {
			if loadModule(path) != nil {
				failed = append(failed, path)
			}
		}
		left = failed
	}
	if len(left) > 0 {
		fmt.Println("drover linux guest: modules that did not load:", left)
	}
}

func loadModule(path string) error {
	f, err := os.Open(path) //nolint:gosec // of this guest
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// countBoot counts in the disk's second sector.
func countBoot(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_SYNC, 0) //nolint:gosec // of this guest
	if err != nil {
		return 1, err
	}
	defer func() { _ = f.Close() }()
	var sector [512]byte
	if _, err := f.ReadAt(sector[:], 512); err != nil {
		return 1, err
	}
	boots := binary.LittleEndian.Uint32(sector[:]) + 1
	binary.LittleEndian.PutUint32(sector[:], boots)
	_, err = f.WriteAt(sector[:], 512)
	return int(boots), err
}

// mountDisk mounts an ext4 file system, and reports whether it was unmounted before.
// Its journal, and that flag, show whether a guest was cut off.
func mountDisk(device, folder string) error {
	const superblock, magicAt, incompatAt, needsRecovery = 1024, 0x38, 0x60, 0x4
	f, err := os.Open(device) //nolint:gosec // of this guest
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var block [1024]byte
	if _, err := f.ReadAt(block[:], superblock); err != nil || binary.LittleEndian.Uint16(block[magicAt:]) != 0xef53 {
		return err
	}
	state := "clean"
	if binary.LittleEndian.Uint32(block[incompatAt:])&needsRecovery != 0 {
		state = "not clean"
	}
	fmt.Printf("drover linux guest: its file system was %s\n", state)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return err
	}
	if err := unix.Mount(device, folder, "ext4", 0, ""); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "boot"), []byte(state), 0o600)
}

func newReport(boots int) report {
	var info unix.Sysinfo_t
	logLine("sysinfo", unix.Sysinfo(&info))
	return report{
		Boots: boots, Cmdline: readFile("/proc/cmdline"), CPUs: runtime.NumCPU(),
		MemoryKiB: info.Totalram * uint64(info.Unit) / 1024, Disks: listDisks(), Seed: printSeed(),
		PCI: listPCI(), Network: listNetwork(),
	}
}

// listPCI returns vendor, device, class and driver of each device.
func listPCI() map[string]string {
	found := map[string]string{}
	devices, _ := filepath.Glob("/sys/bus/pci/devices/*")
	for _, device := range devices {
		driver, _ := os.Readlink(filepath.Join(device, "driver"))
		found[filepath.Base(device)] = strings.Join([]string{
			readFile(filepath.Join(device, "vendor")), readFile(filepath.Join(device, "device")), readFile(filepath.Join(device, "class")), filepath.Base(driver),
		}, " ")
	}
	return found
}

func listNetwork() map[string]string {
	found := map[string]string{}
	devices, _ := filepath.Glob("/sys/class/net/*/device")
	for _, device := range devices {
		path, _ := filepath.EvalSymlinks(device) // .../0000:00:02.0/virtio1
		found[filepath.Base(filepath.Dir(device))] = filepath.Base(filepath.Dir(path))
	}
	return found
}

func readFile(path string) string {
	content, _ := os.ReadFile(path) //nolint:gosec // of this guest
	return strings.TrimSpace(string(content))
}

func listDisks() map[string]disk {
	found := map[string]disk{}
	dirs, _ := filepath.Glob("/sys/block/vd*")
	for _, dir := range dirs {
		sectors, _ := strconv.ParseInt(readFile(filepath.Join(dir, "size")), 10, 64)
		found[filepath.Base(dir)] = disk{
			Size: sectors * 512, Serial: readFile(filepath.Join(dir, "serial")), ReadOnly: readFile(filepath.Join(dir, "ro")) == "1",
		}
	}
	return found
}

// printSeed reads the cloud-init disk, which is an ISO 9660 file system.
func printSeed() map[string]string {
	const at = "/seed"
	_ = os.MkdirAll(at, 0o750)
	devices, _ := filepath.Glob("/dev/vd?")
	for _, device := range devices {
		if unix.Mount(device, at, "iso9660", unix.MS_RDONLY, "") != nil {
			continue
		}
		files := map[string]string{}
		names, _ := os.ReadDir(at)
		for _, name := range names {
			content, _ := os.ReadFile(filepath.Join(at, name.Name()))
			files[name.Name()] = string(content)
		}
		return files
	}
	return nil
}

// serveEcho speaks first, as servers of ssh do.
func serveEcho() error {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{Port: 7})
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.WriteString(conn, "drover linux guest\n")
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

// fetchWithin is how long the guest waits for another server.
const fetchWithin = 5 * time.Second

// Transports of fetch.
var (
	newConnections  = &http.Transport{DisableKeepAlives: true}
	keptConnections = &http.Transport{}
)

// fetch answers with the guest's response from a URL.
func fetch(w http.ResponseWriter, url string, transport *http.Transport) {
	client := http.Client{Timeout: fetchWithin, Transport: transport}
	answer, err := client.Get(url) //nolint:noctx,gosec // bounded, and the test asks for it
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(w, answer.Body)
}

// ping returns nil once a host has answered a ping.
func ping(to string) error {
	address, err := net.ResolveIPAddr("ip4", to)
	if err != nil {
		return err
	}
	conn, err := net.DialIP("ip4:icmp", nil, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	request := []byte{8, 0, 0xe5, 0xca, 0x12, 0x34, 0, 1} // with the checksum of the rest
	if _, err := conn.Write(request); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(fetchWithin)) //nolint:forbidigo // the guest's clock is meant
	for message := make([]byte, 1500); ; {
		n, _, err := conn.ReadFromIP(message)
		if err != nil {
			return err
		}
		if n == len(request) && message[0] == 0 && string(message[4:n]) == string(request[4:]) {
			return nil
		}
	}
}

func serveHTTP(r report) error {
	go func() { logLine("echo", serveEcho()) }()
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(r) })
	http.HandleFunc("/get", func(w http.ResponseWriter, q *http.Request) {
		by := newConnections
		if q.FormValue("keep") != "" {
			by = keptConnections
		}
		fetch(w, q.FormValue("url"), by)
	})
	http.HandleFunc("/ping", func(w http.ResponseWriter, q *http.Request) {
		if err := ping(q.FormValue("to")); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})
	http.HandleFunc("/burn", func(http.ResponseWriter, *http.Request) {
		go func() {
			for {
				runtime.Gosched()
			}
		}()
	})
	http.HandleFunc("/eat", func(_ http.ResponseWriter, q *http.Request) {
		mib, _ := strconv.Atoi(q.FormValue("mib"))
		allocated = make([]byte, mib<<20)
		for page := 0; page < len(allocated); page += os.Getpagesize() {
			allocated[page] = 1
		}
		debug.FreeOSMemory()
	})
	http.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) {
		_ = os.WriteFile("/proc/sys/kernel/sysrq", []byte("1"), 0)
		_ = os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	})
	agent := &guestAgent{processes: map[int]*process{}}
	if mode := findArgument(r.Cmdline, "agent="); mode != "" {
		logLine("agent", agent.setMode(mode))
	}
	http.HandleFunc("/agent", func(w http.ResponseWriter, q *http.Request) {
		if err := agent.setMode(q.FormValue("mode")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	http.HandleFunc("/clock", func(w http.ResponseWriter, q *http.Request) {
		if set, err := strconv.ParseInt(q.FormValue("set"), 10, 64); err == nil {
			logLine("clock", setClock(time.Unix(set, 0)))
		}
		_, _ = fmt.Fprint(w, time.Now().Unix()) //nolint:forbidigo // the guest's clock is meant
	})
	http.HandleFunc("/processes", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, agent.runningProcesses()) })
	http.HandleFunc("/off", func(http.ResponseWriter, *http.Request) { powerOff() })
	if command := findArgument(r.Cmdline, "serve="); command != "" {
		words := strings.Split(command, ",")
		return exec.Command(words[0], words[1:]...).Run() //nolint:gosec,noctx // of this guest
	}
	server := &http.Server{Addr: ":80", ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServe()
}

// findArgument returns what follows a name in the kernel's command line.
func findArgument(cmdline, name string) string {
	_, rest, _ := strings.Cut(cmdline, name)
	word, _, _ := strings.Cut(rest, " ")
	return word
}

var allocated []byte

// powerButton waits for the key of that name.
func powerButton() {
	const keyType, keyPower, pressed = 1, 116, 1
	for range 100 {
		devices, _ := filepath.Glob("/dev/input/event*")
		for _, device := range devices {
			go func() {
				f, err := os.Open(device) //nolint:gosec // of this guest
				if err != nil {
					return
				}
				var event [24]byte
				for {
					if _, err := f.Read(event[:]); err != nil {
						return
					}
					kind, code, value := binary.LittleEndian.Uint16(event[16:]), binary.LittleEndian.Uint16(event[18:]), binary.LittleEndian.Uint32(event[20:])
					if kind == keyType && code == keyPower && value == pressed {
						powerOff()
					}
				}
			}()
		}
		if len(devices) > 0 {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	fmt.Println("drover linux guest: there is no power button")
}

func powerOff() {
	fmt.Println("drover linux guest powers off")
	_ = unix.Unmount("/disk", 0)
	unix.Sync()
	logLine("power off", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
	select {}
}
