# Entry, privilege changes and interrupts. The processor comes here through PVH, in 32-bit protected mode without
# paging; ring 0 switches to 64-bit mode on tables that the linker has laid out and drops to ring 3 at once. Everything
# else runs there, with interrupts off, and comes back to ring 0 only through `ring0_call`.
#
# Under paravirtual nested KVM every instruction of ring 0 is emulated, and vector instructions cannot be. So all of
# ring 0 is in this file, and it is short; an exception is reported by ring 3, too.

    .section .note.Xen, "a", @note      # XEN_ELFNOTE_PHYS32_ENTRY
    .p2align 2
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_entry

# What the Rust side knows of the image; kayvee_x86::layout::Layout.
    .section .rodata.layout, "a"
    .p2align 3
image_layout:
    .quad image_start, text_end
    .quad supervisor_end, data_end, image_end
    .quad ring3_stack_bottom, ring3_stack_top
    .quad ring0_stack_bottom, ring0_stack_top
    .quad fault_stack_bottom, fault_stack_top
    .quad page_tables
    .quad ring0_call
    .global kayvee_symbol_table
kayvee_symbol_table:                    # start and end; packing the image fills them in
    .quad 0, 0

    .section .supervisor, "aw"
    .p2align 4
task_state:                             # Intel SDM volume 3 §8.7
    .long 0
    .quad ring0_stack_top, 0, 0, 0
    .quad fault_stack_top, 0, 0, 0, 0, 0, 0
    .quad 0
    .word 0, 104
    .skip 512                           # ring 3 may use all ports below 0x1000
    .byte 0xff
task_state_end:

    .section .text.boot, "ax"
    .code32
    # The linker script builds the entry, the task descriptor and the interrupt descriptors from these.
    .global pvh_entry, task_state, task_state_end
    .global exception_stubs, general_protection, wake_interrupt, spurious_interrupt
pvh_entry:                              # %ebx: struct hvm_start_info
    cli
    mov $page_tables, %eax
    mov %eax, %cr3
    mov $0x620, %eax                    # PAE | OSFXSR | OSXMMEXCPT
    mov %eax, %cr4
    mov $0xc0000080, %ecx               # EFER: LME | NXE
    mov $0x900, %eax
    xor %edx, %edx
    wrmsr
    mov $0x80010023, %eax               # PG | WP | NE | MP | PE
    mov %eax, %cr0
    lgdt gdt_pointer
    ljmp $8, $in_64_bit_mode

    .code64
in_64_bit_mode:
    mov $0x10, %eax
    mov %eax, %ss
    mov %eax, %ds
    mov %eax, %es
    lidt idt_pointer
    mov $0x28, %eax
    ltr %ax
    mov $ring0_stack_top, %esp
    mov %ebx, %edi
    pushq $0x23                         # to ring 3, interrupts off
    pushq $ring3_stack_top
    pushq $0x2
    pushq $0x1b
    pushq $in_ring_3
    iretq
in_ring_3:
    mov $image_layout, %esi
    xor %ebp, %ebp                      # the last frame of a backtrace
    call {start}
    ud2

# u64 ring0_call(u64 number, u64 a, u64 b, u64 c). A `hlt` outside ring 0 raises #GP: the one way in that paravirtual
# nested KVM leaves open.
    .p2align 4
ring0_call:
    mov %rdi, %rax
ring0_call_site:
    hlt
    ret

# kayvee_x86::ring0 numbers the calls. Call 0 sleeps until an interrupt. `sti` holds interrupts off for one more
# instruction, so that one which is pending already ends the `hlt` instead of coming before it. Where an emulator forgets
# that, `wake_interrupt` steps over the `hlt`.
    .p2align 4
general_protection:
    cmpq $ring0_call_site, 8(%rsp)
    jne general_protection_fault
    test %eax, %eax
    jnz other_call
    sti
sleeping:
    hlt
    cli
return_to_ring_3:
    add $8, %rsp                        # the error code
    incq (%rsp)                         # step over the `hlt`
    iretq
general_protection_fault:
    pushq $13
    jmp exception

other_call:
    cmp $2, %eax
    jb seal
    ja reset

# Call 2 writes a model-specific register, %rsi, with %rdx: only KVM's clock registers, and only so that KVM writes into
# the image's data.
    mov $0xffffffff, %eax
    lea -0x4b564d00(%rsi), %rcx
    cmp $1, %rcx
    ja return_to_ring_3
    cmp $supervisor_end, %rdx
    jb return_to_ring_3
    cmp $data_end, %rdx
    jae return_to_ring_3
    mov %esi, %ecx
    mov %edx, %eax
    shr $32, %rdx
    wrmsr
    xor %eax, %eax
    jmp return_to_ring_3

# Call 1 takes the page tables and the descriptors away from ring 3: those that the linker has laid out, and the pages
# from %rsi to %rdx in the window.
seal:
    mov $page_tables, %eax
    mov $supervisor_end, %ecx
    call 1f
    mov %rsi, %rax
    mov %rdx, %rcx
    call 1f
    mov %cr3, %rax                      # forget translations that still allow it
    mov %rax, %cr3
    xor %eax, %eax
    jmp return_to_ring_3
1:  shr $12, %rax
    shr $12, %rcx
2:  cmp %rcx, %rax
    jae 3f
    andb $~4, page_tables + 4 * 4096(,%rax,8)   # the user bit of the window's entry
    inc %rax
    jmp 2b
3:  ret

# Call 3 resets the processor, by an exception that it cannot deliver.
reset:
    pushq $0
    pushq $0
    lidt (%rsp)
    ud2

# An interrupt only ends a sleep; whatever it was about, ring 3 looks for itself.
    .p2align 4
wake_interrupt:
    push %rax
    xor %eax, %eax
    movabs %eax, 0xfee000b0             # end of interrupt
    pop %rax
spurious_interrupt:
    cmpq $sleeping, (%rsp)
    jne 1f
    incq (%rsp)
1:  iretq

    .p2align 4
exception_stubs:
    .set vector, 0
    .rept 32
    .p2align 4
    .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30
    .else
    pushq $0                            # the processor pushes an error code for the others
    .endif
    pushq $vector
    jmp exception
    .set vector, vector + 1
    .endr

# Ring 3 reports the exception, on what is left of this stack. kayvee_x86::exception::Frame
exception:
    push %rax
    push %rcx
    push %rdx
    push %rbx
    push %rbp
    push %rsi
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    push %r12
    push %r13
    push %r14
    push %r15
    mov %cr2, %rax
    push %rax
    mov %rsp, %rdi
    mov $image_layout, %esi
    mov %rsp, %rax
    and $-16, %rax
    sub $64, %rax
    pushq $0x23
    push %rax
    pushq $0x2
    pushq $0x1b
    pushq $1f
    iretq
1:  xor %ebp, %ebp
    call {exception}
    ud2
