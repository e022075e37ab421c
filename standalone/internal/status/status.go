// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package status shows an installation at a glance: whether it runs, since when, and on which engines.
//
// Start with Gather, which only reads the data dir, the API server and the engines. print.go
// prints the result for people.
package status

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/storekeeper"
)

// State says whether Drover runs.
type State string

// The states of an installation, in the order of its life.
const (
	// StateAbsent means that there is no data dir.
	StateAbsent   State = "absent"
	StateStarting State = "starting"
	StateReady    State = "ready"
	StateStopping State = "stopping"
	StateStopped  State = "stopped"
)

// Status describes an installation. Unknown values are left out.
type Status struct {
	State     State     `json:"state"`
	Version   string    `json:"version,omitempty"`
	PID       int       `json:"pid,omitempty"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	// EndedAt and Failure say when and why the last run ended, while Drover does not run.
	EndedAt time.Time `json:"endedAt,omitzero"`
	Failure string    `json:"failure,omitempty"`
	DataDir string    `json:"dataDir"`
	API     *API      `json:"api,omitempty"`
	Leader  *Leader   `json:"leader,omitempty"`
	Drivers []Driver  `json:"drivers"`
	VMs     *VMs      `json:"virtualMachines,omitempty"`
	Disk    *Disk     `json:"disk,omitempty"`
	// Store is the usage of the API's store, while Drover runs.
	Store    *storekeeper.Usage `json:"store,omitempty"`
	Warnings []findings.Finding `json:"warnings"`
}

// API is the API server.
type API struct {
	URL     string `json:"url"`
	Version string `json:"version,omitempty"`
	// Error says why the API server does not answer, or is not ready.
	Error string `json:"error,omitempty"`
}

// Leader is the controller that acts.
type Leader struct {
	Identity  string    `json:"identity"`
	RenewedAt time.Time `json:"renewedAt,omitzero"`
}

// Driver is a driver and its engine.
type Driver struct {
	Driver   string `json:"driver"`
	EngineID string `json:"engineID,omitempty"`
	Version  string `json:"version,omitempty"`
	Dir      string `json:"dir,omitempty"`
	// IsDefault is set for the driver of VirtualMachines that do not name a driver. IsOff is set
	// for a driver that an earlier run has used, and this run does not.
	IsDefault bool `json:"isDefault,omitempty"`
	IsOff     bool `json:"isOff,omitempty"`
	// Error says why the engine does not answer. The numbers are then unknown.
	Error string `json:"error,omitempty"`
	// Servers is the number of servers that were not released. Of these, Running is the number
	// that are on, and Orphans the number that no VirtualMachine owns, or nil if it is unknown.
	// Retained is the number of released servers.
	Servers  int  `json:"servers"`
	Running  int  `json:"running"`
	Orphans  *int `json:"orphans,omitempty"`
	Retained int  `json:"retained"`
}

// VMs counts the VirtualMachines by phase. The phase is "" before a controller has seen a VirtualMachine.
type VMs struct {
	Total  int            `json:"total"`
	Phases map[string]int `json:"phases"`
}

// Disk describes the file system that holds the data dir.
type Disk struct {
	FreeBytes  uint64 `json:"freeBytes"`
	TotalBytes uint64 `json:"totalBytes"`
}

// engineTimeout and apiTimeout are how long the engines and the API may take to answer.
const (
	engineTimeout = 10 * time.Second
	apiTimeout    = 10 * time.Second
)

// Gather reads the status of an installation. It fails if the data dir cannot be read.
func Gather(ctx context.Context, h *doctor.Host) (*Status, error) {
	if errors.Is(h.PIDErr, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: run this as root, or as the owner of the data dir", h.PIDErr)
	}
	if errors.Is(h.PIDErr, context.DeadlineExceeded) {
		return nil, h.PIDErr
	}
	s := &Status{DataDir: string(h.Layout), Drivers: []Driver{}, Warnings: []findings.Finding{}}
	if err := s.readRun(h); err != nil {
		return nil, err
	}
	warnings := make(chan []findings.Finding, 1)
	go func() { warnings <- h.Warnings(ctx) }()
	s.readDisk()
	surveyed := s.surveyEngines(ctx, h) // before the API, so that the owner of a new server is found
	owners := s.readAPI(ctx, h)
	s.setDrivers(h, surveyed, owners)
	s.Warnings = append(s.Warnings, <-warnings...)
	return s, nil
}

// readRun reads from the data dir whether Drover runs, and how the last run ended.
func (s *Status) readRun(h *doctor.Host) error {
	found, err := h.Layout.Exists()
	if err != nil {
		return err
	}
	_, notReady := os.Stat(h.Layout.Ready())
	switch {
	case !found:
		s.State = StateAbsent
	case h.PID == 0:
		s.State = StateStopped
	case notReady == nil:
		s.State = StateReady
	default:
		s.State = StateStarting
	}
	s.PID = h.PID
	if h.State == nil {
		return nil
	}
	s.Version, s.StartedAt, s.EndedAt, s.Failure = h.State.Version, h.State.StartedAt, h.State.EndedAt, h.State.Failure
	if s.State == StateStarting && h.State.Stopping {
		s.State = StateStopping
	}
	return nil
}

func (s *Status) readDisk() {
	if free, total, err := doctor.FreeBytes(s.DataDir); err == nil {
		s.Disk = &Disk{free, total}
	}
}

// surveyEngines surveys the engines, whether Drover runs or not.
func (s *Status) surveyEngines(ctx context.Context, h *doctor.Host) []engines.Surveyed {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	cluster, err := h.Layout.ClusterID()
	if err != nil || cluster == "" {
		return nil
	}
	all, err := engines.Survey(ctx, h.Layout.Engines(), driver.Environment{ClusterID: cluster, Clock: h.Clock, Log: logr.Discard()})
	if err != nil {
		s.addWarning("engines", "%v", err)
	}
	return all
}

func (s *Status) addWarning(name, format string, args ...any) {
	f := findings.Warning(format, args...)
	f.Name = name
	s.Warnings = append(s.Warnings, f)
}

// readAPI reads the status from the API server, if Drover runs. It returns the UIDs of all
// VirtualMachines, or nil if they are unknown.
func (s *Status) readAPI(ctx context.Context, h *doctor.Host) map[types.UID]bool {
	if s.PID == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	config, err := h.ClientConfig()
	if err != nil {
		s.API = &API{Error: err.Error()}
		return nil
	}
	config.QPS = -1
	s.API = &API{URL: config.Host}
	owners, err := s.askAPI(ctx, h, config)
	if err != nil {
		s.API.Error = err.Error()
	}
	return owners
}

func (s *Status) askAPI(ctx context.Context, h *doctor.Host, config *rest.Config) (map[types.UID]bool, error) {
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	version, err := server.ServerVersion()
	if err != nil {
		return nil, err
	}
	s.API.Version = version.GitVersion
	if failed := doctor.FailedChecks(ctx, server.RESTClient()); failed != "" {
		return nil, fmt.Errorf("not ready: %s", failed)
	}
	// A running drover of an earlier version does not serve the usage.
	if s.Store, err = doctor.StoreUsage(ctx, server.RESTClient()); err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if !h.WithoutController {
		if err := s.readLeader(ctx, config); err != nil {
			return nil, err
		}
	}
	return s.readVMs(ctx, config)
}

func (s *Status) readLeader(ctx context.Context, config *rest.Config) error {
	lease, err := doctor.Lease(ctx, config)
	if err != nil || lease == nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return err
	}
	s.Leader = &Leader{Identity: *lease.Spec.HolderIdentity}
	if t := lease.Spec.RenewTime; t != nil {
		s.Leader.RenewedAt = t.Time
	}
	return nil
}

// readVMs counts the VirtualMachines, and returns their UIDs. It reads them page by page.
func (s *Status) readVMs(ctx context.Context, config *rest.Config) (map[types.UID]bool, error) {
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		return nil, err
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	vms, owners := &VMs{Phases: map[string]int{}}, map[types.UID]bool{}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := &api.VirtualMachineList{}
		return page, reader.List(ctx, page, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
	})
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		vm, ok := object.(*api.VirtualMachine)
		if !ok {
			return fmt.Errorf("the list of VirtualMachines has a %T", object)
		}
		vms.Total++
		vms.Phases[string(vm.Status.Phase)]++
		owners[vm.UID] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.VMs = vms
	return owners, nil
}

func (s *Status) setDrivers(h *doctor.Host, surveyed []engines.Surveyed, owners map[types.UID]bool) {
	var running []string
	if h.State != nil && h.PID != 0 {
		running = h.State.Drivers
	}
	for _, e := range surveyed {
		d := Driver{
			Driver: e.Driver, EngineID: e.EngineID, Version: e.Version, Dir: e.Dir,
			IsDefault: len(running) > 0 && running[0] == e.Driver, IsOff: len(running) > 0 && !slices.Contains(running, e.Driver),
		}
		if d.EngineID == "" {
			d.EngineID = e.ID
		}
		if e.Err != nil {
			d.Error = e.Err.Error()
		} else {
			d.countServers(e.Servers, owners)
		}
		s.Drivers = append(s.Drivers, d)
	}
	order := func(name string) int {
		if i := slices.Index(running, name); i >= 0 {
			return i
		}
		return len(running)
	}
	slices.SortStableFunc(s.Drivers, func(a, b Driver) int { return order(a.Driver) - order(b.Driver) })
}

func (d *Driver) countServers(servers []driver.Server, owners map[types.UID]bool) {
	orphans := 0
	for _, server := range servers {
		if server.Retained {
			d.Retained++
			continue
		}
		d.Servers++
		if s := server.State; s != driver.StateStopped && s != driver.StatePending && s != driver.StateRemoving {
			d.Running++
		}
		if server.MayBeOrphan() && !owners[server.UID] {
			orphans++
		}
	}
	if owners != nil {
		d.Orphans = &orphans
	}
}

// sortedPhases returns the phases in alphabetical order.
func (v *VMs) sortedPhases() []string { return slices.Sorted(maps.Keys(v.Phases)) }
